"""The forest of each lane while a plan is made: questions about it, and the two changes (join, leave). No decisions.

Two kinds of edges use two kinds of ports. Inside a domain a node feeds one child per lane. Between domains, an edge is
a *crossing*: it takes no slot, and a node pulls one crossing at a time. Where the policy is Any there are no
crossings. An edge whose child has all of the lane is done: it stays on the record and takes neither slot nor port.
"""

from __future__ import annotations

from flashboot_operator.core.fanout.model import Facts, Member

SLOTS = 1
"""Children per node and lane inside a domain."""


class Forest:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.lanes = range(len(facts.lanes))
        self.roots = frozenset(facts.roots)
        self.members: dict[str, Member] = {m.node: m for m in facts.members if m.node not in self.roots}
        self.parent: list[dict[str, str]] = [{} for _ in self.lanes]
        """Per lane: child → parent."""
        self.children: list[dict[str, set[str]]] = [{} for _ in self.lanes]
        self._rooted: list[dict[str, bool]] = [{} for _ in self.lanes]
        self._candidates = [*facts.roots, *sorted(n for n in self.members if self.able(n))]

    # Changes

    def join(self, lane: int, child: str, parent: str) -> None:
        self.leave(lane, child)
        self.parent[lane][child] = parent
        self.children[lane].setdefault(parent, set()).add(child)
        self._rooted[lane].clear()

    def leave(self, lane: int, child: str) -> None:
        parent = self.parent[lane].pop(child, None)
        if parent is not None:
            self.children[lane][parent].discard(child)
            self._rooted[lane].clear()

    # One node

    def able(self, node: str) -> bool:
        """It can feed others: sealed, or alive with memory of its own."""
        m = self.members.get(node)
        if m is None:
            return node in self.roots
        return m.serving and not (m.stuck or m.gone or m.other_lanes)

    def slow(self, node: str) -> bool:
        return node in self.members and self.members[node].slow

    def bad(self, node: str) -> bool:
        """A parent only where there is no better one."""
        return self.slow(node) or node in self.facts.avoid

    def burden(self, node: str) -> int:
        """What it costs to feed one more from here: the source is spared, and who serves even more."""
        return 2 * (node in self.facts.serving) + (node in self.facts.sources)

    def watermark(self, lane: int, node: str) -> int:
        m = self.members.get(node)
        return self.facts.lanes[lane] if m is None else m.watermarks[lane]

    def complete(self, lane: int, node: str) -> bool:
        return self.watermark(lane, node) >= self.facts.lanes[lane]

    def rooted(self, lane: int, node: str) -> bool:
        """It has all of the lane, or hangs below one that has."""
        memo, path = self._rooted[lane], []
        at: str | None = node
        while at is not None and at not in memo and at not in path:
            if at in self.roots or (self.able(at) and self.complete(lane, at)):
                memo[at] = True
                break
            path.append(at)
            at = self.parent[lane].get(at)
        found = at is not None and memo.get(at, False)
        memo.update(dict.fromkeys(path, found))
        return found

    # Two nodes

    def apart(self, a: str, b: str) -> bool:
        """Bytes between them cross from one domain to another."""
        domains = self.facts.domains
        return self.facts.policy != "Any" and domains.get(a) != domains.get(b)

    def in_reach(self, a: str, b: str) -> bool:
        return self.facts.policy != "RequireSame" or not self.apart(a, b)

    def may_feed(self, parent: str, child: str) -> bool:
        if parent == child or not self.able(parent) or not self.in_reach(parent, child):
            return False
        return parent in self.roots or not self.members[child].other_lanes

    def ahead(self, lane: int, parent: str, child: str) -> bool:
        return self.watermark(lane, parent) >= self.watermark(lane, child) and self.rooted(lane, parent)

    def sources_near(self, node: str) -> list[str]:
        """The sources of the node's own domain, or all where it has none."""
        near = [source for source in self.facts.sources if not self.apart(source, node)]
        return near or list(self.facts.sources)

    # Counts of edges that carry bytes

    def _active(self, lane: int, child: str) -> bool:
        return not self.complete(lane, child) and not self.members[child].stuck

    def fed(self, lane: int, node: str) -> int:
        """Children inside the domain."""
        return sum(1 for c in self.children[lane].get(node, ()) if self._active(lane, c) and not self.apart(c, node))

    def lanes_fed(self, node: str) -> int:
        return sum(1 for lane in self.lanes if self.fed(lane, node))

    def crossings_out(self, node: str) -> int:
        return sum(
            1
            for lane in self.lanes
            for c in self.children[lane].get(node, ())
            if self._active(lane, c) and self.apart(c, node)
        )

    def crosses(self, child: str) -> bool:
        """It is a gateway at work: it pulls some lane from another domain."""
        return any(
            (parent := self.parent[lane].get(child)) is not None
            and self.apart(parent, child)
            and self._active(lane, child)
            for lane in self.lanes
        )

    def in_domain(self, lane: int, node: str) -> bool:
        """The lane is on its way to the node's domain already, or is there."""
        return any(
            c != node and not self.apart(c, node) and self.rooted(lane, c)
            for c in (*self.facts.roots, *(m.node for m in self.members.values() if not m.stuck))
        )

    def candidates(self) -> list[str]:
        """All who can feed others: sealed nodes by preference, then members by name."""
        return self._candidates
