"""Facts for the fan-out planner, any facts; and a small cluster in which things happen one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from flashboot_operator.core.fanout.model import Facts, Member, Plan
from flashboot_operator.core.fanout.plan import plan

SIZE = 100
NAMES = [f"n{i}" for i in range(7)]


@st.composite
def any_facts(draw: st.DrawFn, *, fresh: bool = False) -> Facts:
    """`fresh`: nobody has a parent yet, nobody has complained, is slow or has gone."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    roots = names[: draw(st.integers(1, len(names)))]
    lanes = draw(st.integers(1, 3))
    members = []
    for name in names[len(roots) :]:
        serving = draw(st.booleans())
        members.append(
            Member(
                node=name,
                arrival=draw(st.integers(0, 3)),
                watermarks=tuple(draw(st.integers(0, SIZE)) if serving else 0 for _ in range(lanes)),
                parents=tuple(None if fresh else draw(st.none() | st.sampled_from(NAMES)) for _ in range(lanes)),
                serving=serving,
                stuck=not serving and not fresh and draw(st.booleans()),
                slow=not fresh and draw(st.booleans()),
                gone=not fresh and draw(st.integers(0, 3)) == 0,
                other_lanes=not fresh and draw(st.integers(0, 5)) == 0,
            )
        )
    pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))
    return Facts(
        lanes=(SIZE,) * lanes,
        sources=tuple(roots[: draw(st.integers(1, 4))]),
        roots=tuple(roots),
        members=tuple(draw(st.permutations(members))),
        accused=frozenset() if fresh else draw(st.frozensets(pairs, max_size=3)),
        domains={name: draw(st.sampled_from(["a", "b"])) for name in NAMES},
        policy=draw(st.sampled_from(["RequireSame", "PreferSame", "Any"])),
        lanes_per_root=draw(st.none() | st.integers(1, 2)),
        serving=draw(st.frozensets(st.sampled_from(roots))),
        avoid=draw(st.frozensets(st.sampled_from(roots))),
    )


def told(facts: Facts, made: Plan) -> Facts:
    """The same facts after everybody was told the plan."""
    return replace(
        facts, members=tuple(replace(m, parents=tuple(edges.get(m.node) for edges in made)) for m in facts.members)
    )


@dataclass
class Cluster:
    """Nodes that obey: they take the parents they are told, and get bytes as far as their parents have them."""

    lanes: int
    sources: tuple[str, ...]
    domains: dict[str, str] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    edges: Plan = ()
    changed: int = 0
    """Edges of a node that had another parent before, in the last event."""
    added: int = 0

    def facts(self) -> Facts:
        return Facts(
            (SIZE,) * self.lanes, self.sources, self.sources, tuple(self.members.values()), domains=self.domains
        )

    def settle(self) -> Plan:
        before = self.edges or ({},) * self.lanes
        self.edges = plan(self.facts())
        pairs = [(old, new, n) for old, new in zip(before, self.edges, strict=True) for n in new]
        self.changed = sum(1 for old, new, n in pairs if n in old and old[n] != new[n])
        self.added = sum(1 for old, _, n in pairs if n not in old)
        self.members = {m.node: m for m in told(self.facts(), self.edges).members if not m.gone}
        return self.edges

    def arrive(self, node: str) -> Plan:
        self.members[node] = Member(node, len(self.members), (0,) * self.lanes, (None,) * self.lanes, serving=True)
        return self.settle()

    def change(self, node: str, **what: bool) -> Plan:
        self.members[node] = replace(self.members[node], **what)  # type: ignore[arg-type]
        return self.settle()

    def flow(self, steps: dict[str, int]) -> None:
        """Each node gets so many bytes of each lane, not more than its parent has."""

        def has(lane: int, node: str | None) -> int:
            return 0 if node is None else SIZE if node in self.sources else self.members[node].watermarks[lane]

        for node, step in steps.items():
            m = self.members.get(node)
            if m is None:
                continue
            marks = [
                max(mark, min(mark + step, has(lane, self.edges[lane].get(node))))
                for lane, mark in enumerate(m.watermarks)
            ]
            self.members[node] = replace(m, watermarks=tuple(marks))

    def depth_of(self, lane: int, node: str) -> int:
        edges, depth = self.edges[lane], 0
        while node in edges:
            node, depth = edges[node], depth + 1
        return depth
