"""Where a child that waits for a parent goes, lane by lane, in order of arrival.

Inside its domain: a peer that is able, rooted, at or ahead of the child's watermark, and has a slot. Among those: none
to avoid as long as the domain has another sealed node, not one the child complained about, not a slow one, no sealed
node beyond its share of lanes (never, while somebody else there gets the lane), none that serves while an idle one can,
no source while another can, then the highest watermark, the source whose turn it is in this lane, the fewest children,
the smaller name.

Where the domain has nobody that has or gets the lane, the child becomes its *gateway* for this lane and pulls it from
another domain, from the node with the fewest crossings, unless it is at work on another crossing: then the lane stays
open, for the child itself when that one is done, or for whoever arrives before.
"""

from __future__ import annotations

from flashboot_operator.core.fanout.forest import SLOTS, Forest
from flashboot_operator.core.fanout.model import Member
from flashboot_operator.core.fanout.repair import take_slot

Key = tuple[bool, bool, bool, int, int, int, int, int]


def attach_all(forest: Forest) -> None:
    for lane in forest.lanes:
        waiting = [
            m
            for m in forest.members.values()
            if not m.gone and m.node not in forest.parent[lane] and not forest.complete(lane, m.node)
        ]
        waiting.sort(key=lambda m: _turn(forest, lane, m))
        while waiting:
            displaced = _attach(forest, lane, waiting.pop(0))
            if displaced is not None:
                waiting.append(forest.members[displaced])
        _away_from_slow(forest, lane)


def _away_from_slow(forest: Forest, lane: int) -> None:
    """Those that are still below a slow parent leave it if there is a better one."""
    for child, parent in sorted(forest.parent[lane].items()):
        m = forest.members[child]
        if not forest.slow(parent) or m.slow or forest.complete(lane, child):
            continue
        forest.leave(lane, child)
        better = choose(forest, lane, m)
        forest.join(lane, child, parent if better is None or forest.slow(better) else better)


def _turn(forest: Forest, lane: int, m: Member) -> tuple[bool, bool, int, bool, float, str]:
    """The most advanced first: the others can go below it. Who was complained about comes last."""
    accused = forest.facts.accused
    blamed = m.slow or any(parent == m.node for _, parent in accused)
    blaming = any(child == m.node for child, _ in accused)
    return (m.stuck, blamed, -m.watermarks[lane], blaming, m.arrival, m.node)


def _attach(forest: Forest, lane: int, m: Member) -> str | None:
    """Returns who lost its place to the child, if anybody did."""
    parent = choose(forest, lane, m)
    if parent is None:
        parent = _cross(forest, lane, m)
    if parent is None:
        return None
    if forest.slow(parent) and not m.slow and not m.stuck and take_slot(forest, lane, m.node, parent):
        return None if forest.complete(lane, parent) else parent
    forest.join(lane, m.node, parent)
    return None


def choose(forest: Forest, lane: int, m: Member) -> str | None:
    """The best parent inside the domain.

    A child's own descendants are not rooted while it has no parent, so it can never land below itself. A parent that it
    complained about is taken again only when there is no other: one flipped bit must not cut off the last source.
    """
    facts = forest.facts
    near = [n for n in forest.parent[lane] if n != m.node and not forest.apart(n, m.node)]
    under_way = any(forest.rooted(lane, n) for n in near)
    sources = forest.sources_near(m.node)
    turn = {node: (i - lane) % len(sources) for i, node in enumerate(sources)}
    spare = _another_root(forest, m)
    best: tuple[Key, str] | None = None
    for order, node in enumerate(forest.candidates()):
        if spare and node in facts.avoid:
            continue
        if forest.apart(node, m.node) or not forest.may_feed(node, m.node) or not forest.ahead(lane, node, m.node):
            continue
        fed = forest.fed(lane, node)
        if fed >= SLOTS and not m.stuck:
            continue
        beyond = _beyond(forest, node)
        if beyond and under_way:
            continue
        key: Key = (
            (m.node, node) in facts.accused,
            forest.bad(node),
            beyond,
            forest.burden(node),
            -forest.watermark(lane, node),
            turn.get(node, 0),
            fed,
            order,
        )
        if best is None or key < best[0]:
            best = (key, node)
    return best[1] if best else None


def _another_root(forest: Forest, m: Member) -> bool:
    """Whether the domain has a sealed node that is not to be avoided: then the child rather waits for a slot."""
    facts = forest.facts
    return any(
        root not in facts.avoid and not forest.apart(root, m.node) and (m.node, root) not in facts.accused
        for root in facts.roots
    )


def _beyond(forest: Forest, node: str) -> bool:
    """A sealed node that serves and feeds its share of lanes already."""
    share = forest.facts.lanes_per_root
    return node in forest.facts.serving and share is not None and forest.lanes_fed(node) >= share


def _cross(forest: Forest, lane: int, m: Member) -> str | None:
    """The best parent in another domain, for a child that may become the gateway."""
    if forest.facts.policy != "PreferSame" or forest.in_domain(lane, m.node) or forest.crosses(m.node):
        return None
    options = [
        (
            (m.node, node) in forest.facts.accused,
            forest.bad(node),
            forest.crossings_out(node),
            forest.burden(node),
            -forest.watermark(lane, node),
            order,
            node,
        )
        for order, node in enumerate(forest.candidates())
        if forest.apart(node, m.node) and forest.may_feed(node, m.node) and forest.ahead(lane, node, m.node)
    ]
    return min(options)[-1] if options else None
