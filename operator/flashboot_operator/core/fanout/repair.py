"""Whose parent fails: dead, accused or slow. The least is changed that heals it.

The most advanced orphan takes the slot of the one that failed, at the nearest live ancestor; the other orphans attach
anew (attach.py). One that is only slow, or accused, keeps its bytes and goes to the tail: it waits until a free peer
has as much as it. So a death or a demotion in a chain moves one edge of a healthy node.

An edge that works is never changed but by these rules. A parent may look behind its child for a moment, because the two
reports were not made at the same time; that is no reason to break it. A slow parent is left only for a better place.
"""

from __future__ import annotations

from flashboot_operator.core.fanout.forest import SLOTS, Forest


def keep(forest: Forest, lane: int) -> None:
    """Take over the present edges that can work, and cut what goes in a circle."""
    for node in sorted(forest.members):
        m = forest.members[node]
        parent = m.parents[lane]
        if parent is not None and not m.gone and not m.stuck and forest.may_feed(parent, node):
            forest.join(lane, node, parent)
    edges, safe = forest.parent[lane], set[str]()
    for start in sorted(edges):
        path: list[str] = []
        at: str | None = start
        while at is not None and at not in safe and at not in path:
            path.append(at)
            at = edges.get(at)
        if at is not None and at not in safe:
            forest.leave(lane, max(path[path.index(at) :], key=lambda n: (forest.watermark(lane, n), n)))
        safe.update(path)


def repair(forest: Forest, lane: int) -> None:
    """Give the orphans of each failed node a new place, as far as it is that node's. After `keep`."""
    orphans = _orphans(forest, lane)
    for failed in sorted(orphans):
        accusers = {child for child, parent in forest.facts.accused if parent == failed}
        for child in orphans[failed]:
            if child in accusers or not forest.slow(failed):
                forest.leave(lane, child)
        m = forest.members.get(failed)
        if accusers or m is None or m.gone or m.stuck or m.slow:  # Else it just has nothing yet: its place is its own.
            first = min(orphans[failed], key=lambda c: _rank(forest, lane, c, failed))
            take_slot(forest, lane, first, failed)


def _rank(forest: Forest, lane: int, child: str, failed: str) -> tuple[bool, int, float, str]:
    """Who goes first: those of its own domain, as a slot is of use to them only, then the most advanced."""
    m = forest.members[child]
    return (forest.apart(failed, child), -m.watermarks[lane], m.arrival, child)


def _orphans(forest: Forest, lane: int) -> dict[str, list[str]]:
    """Failed node → its children that still need bytes."""
    found: dict[str, list[str]] = {}
    for node, m in forest.members.items():
        parent = m.parents[lane]
        if parent is None or m.gone or m.stuck or forest.complete(lane, node):
            continue
        works = forest.parent[lane].get(node) == parent and (node, parent) not in forest.facts.accused
        if not works or (forest.slow(parent) and not m.slow):
            found.setdefault(parent, []).append(node)
    return found


def take_slot(forest: Forest, lane: int, child: str, failed: str) -> bool:
    """Put the child where the failed node is, if that can be; the failed one, if it lives, is then without a parent."""
    ancestor = _ancestor(forest, lane, child, failed)
    if ancestor is None or not forest.may_feed(ancestor, child) or (child, ancestor) in forest.facts.accused:
        return False
    before, above = forest.parent[lane].get(child), forest.parent[lane].get(failed)
    forest.leave(lane, child)
    forest.leave(lane, failed)
    crossing = forest.apart(ancestor, child)
    free = not crossing and forest.fed(lane, ancestor) < SLOTS
    gateway = crossing and not forest.apart(failed, child) and not forest.in_domain(lane, child)
    if forest.ahead(lane, ancestor, child) and (free or (gateway and not forest.crosses(child))):
        forest.join(lane, child, ancestor)
        return True
    if before is not None:
        forest.join(lane, child, before)
    if above is not None:
        forest.join(lane, failed, above)
    return False


def _ancestor(forest: Forest, lane: int, child: str, failed: str) -> str | None:
    """Who is above the failed node, or was: the first that is able, and that is not slow itself."""
    seen = {child}
    at: str | None = failed
    while at is not None and at not in seen:
        seen.add(at)
        if at != failed and forest.able(at) and not forest.slow(at):
            return at
        m = forest.members.get(at)
        at = forest.parent[lane].get(at) or (m.parents[lane] if m is not None else None)
    return None
