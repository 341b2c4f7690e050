"""Whom a child may try by itself when its parent fails: parent, grandparent, best free peer, other sealed nodes,
source.

However many children fall back at once, and to whichever of these, no circle comes about: all of a child's fallbacks
lie before it in one order of the lane's nodes (by depth, then name), so every edge points backwards in that order.
"""

from __future__ import annotations

from flashboot_operator.core.fanout.forest import SLOTS, Forest

MAX_PARENTS = 8


def fallbacks(forest: Forest, lane: int, child: str) -> list[str]:
    """The parent first; empty when the child has none. At most MAX_PARENTS, without repetition."""
    edges, facts = forest.parent[lane], forest.facts
    parent = edges.get(child)
    if parent is None:
        return []
    names = [parent]
    trusted = [n for n in forest.candidates() if forest.may_feed(n, child) and (child, n) not in facts.accused]
    if forest.rooted(lane, child):
        place = (_depth(forest, lane, child), child)
        if (above := edges.get(parent)) in trusted:
            names.append(above)
        free = [
            (forest.bad(n), forest.apart(n, child), -forest.watermark(lane, n), n)
            for n in trusted
            if n not in forest.roots
            and n not in names
            and forest.fed(lane, n) < SLOTS
            and forest.ahead(lane, n, child)
            and (_depth(forest, lane, n), n) < place
        ]
        names += [min(free)[-1]] if free else []
    sources = forest.sources_near(child)
    own = [sources[(lane + i) % len(sources)] for i in range(len(sources))]
    others = [n for n in trusted if n in forest.roots and n not in sources and n not in names]
    last = [n for n in own if n in trusted and n not in names]
    names += sorted(others, key=lambda n: (forest.bad(n), forest.apart(n, child)))[
        : MAX_PARENTS - len(names) - len(last[:1])
    ]
    return names + last[: MAX_PARENTS - len(names)]


def _depth(forest: Forest, lane: int, node: str) -> int:
    """Edges up to the node that has all of the lane."""
    depth, edges = 0, forest.parent[lane]
    while node not in forest.roots and node in edges:
        node = edges[node]
        depth += 1
    return depth
