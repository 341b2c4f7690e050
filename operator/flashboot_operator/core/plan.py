"""The fan-out plan of one arena: who pulls from whom.

A chain by arrival, which an event-driven simulation found to be within a few percent of the best: each target, once it
is ready, attaches below the freest peer with the highest watermark, so that it neither waits for its parent nor loads
the source. What always holds of the result, whatever the facts:

* It is a forest: no cycles, every root is a sealed arena. Only nodes that have the arena are parents.
* A *new* edge has a parent whose watermark is at least the child's, and no parent gets a second child by a new edge.
* An edge that works is never changed. Its parent may look behind its child for a moment, because the two reports were
  not made at the same time; that is no reason to break it.
* The same facts give the same plan.

A child that waits for nobody has no entry: there is no free peer yet; it gets one as soon as the facts change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

DomainPolicy = Literal["RequireSame", "PreferSame", "Any"]
SLOTS = 1
"""Children per node."""


@dataclass(frozen=True)
class Child:
    """A node that shall get the arena and can start now."""

    node: str
    arrival: datetime
    watermark: int = 0
    serving: bool = False
    """Its agent has the arena allocated, so that others may pull from it."""
    parent: str | None = None
    """Whom it pulls from, or was last told to."""
    stuck: bool = False
    """It cannot go on for a reason of its own, such as no memory: it must not keep a slot from others."""


@dataclass(frozen=True)
class Facts:
    source: str
    roots: Mapping[str, int]
    """Sealed nodes that answer → bytes of their arena."""
    children: Sequence[Child]
    accused: frozenset[tuple[str, str]] = frozenset()
    """(child, parent) complaints of the last while."""
    domains: Mapping[str, str] = field(default_factory=dict)
    policy: DomainPolicy = "PreferSame"


def plan(facts: Facts) -> dict[str, str]:
    """Child → parent."""
    children = {c.node: c for c in facts.children if c.node not in facts.roots}
    edges = _kept(facts, children)
    counts = Counter(edges.values())
    waiting = [c for node, c in children.items() if node not in edges]
    blamed = {parent for _, parent in facts.accused}
    blaming = {child for child, _ in facts.accused}
    waiting.sort(key=lambda c: (c.stuck, c.node in blamed, -c.watermark, c.node in blaming, c.arrival, c.node))
    for child in waiting:
        parent = _choose(facts, children, edges, counts, child)
        if parent is not None:
            edges[child.node] = parent
            counts[parent] += 0 if child.stuck else 1
    return {node: edges[node] for node in sorted(edges)}


def _kept(facts: Facts, children: Mapping[str, Child]) -> dict[str, str]:
    """The present edges that work."""
    edges: dict[str, str] = {}
    for node in sorted(children):
        child = children[node]
        if child.parent is not None and not child.stuck and _may_feed(facts, children, child.parent, node):
            edges[node] = child.parent
    for child_name, parent in sorted(facts.accused):
        # The one that was complained about makes room for the one that complained, and goes to the tail. One that
        # complained itself does not take along those that gain nothing from it.
        if child_name in children and child_name not in edges and not children[child_name].stuck:
            edges.pop(parent, None)
            for below in [n for n, p in sorted(edges.items()) if p == child_name]:
                if children[below].watermark >= children[child_name].watermark:
                    del edges[below]
    for node in sorted(edges):
        while (cycle := _cycle(edges, node)) is not None:
            del edges[max(cycle, key=lambda n: (children[n].watermark, n))]
    return edges


def _may_feed(facts: Facts, children: Mapping[str, Child], parent: str, child: str) -> bool:
    if parent == child or (child, parent) in facts.accused or not _in_reach(facts, parent, child):
        return False
    return parent in facts.roots or (parent in children and children[parent].serving and not children[parent].stuck)


def _in_reach(facts: Facts, a: str, b: str) -> bool:
    return facts.policy != "RequireSame" or facts.domains.get(a) == facts.domains.get(b)


def _cycle(edges: Mapping[str, str], start: str) -> list[str] | None:
    path: list[str] = []
    node: str | None = start
    while node is not None and node not in path:
        path.append(node)
        node = edges.get(node)
    return None if node is None else path[path.index(node) :]


def _rooted(facts: Facts, edges: Mapping[str, str], node: str) -> bool:
    while node in edges:
        node = edges[node]
    return node in facts.roots


def _choose(
    facts: Facts, children: Mapping[str, Child], edges: Mapping[str, str], counts: Mapping[str, int], child: Child
) -> str | None:
    """The best parent for a child that has none.

    A child's own descendants are not rooted while it has no parent, so it can never land below itself. A parent that it
    complained about is taken again only when there is no other: one flipped bit must not cut off the last source.
    """
    options: list[tuple[bool, bool, bool, int, int, str]] = []
    for name, watermark in [
        *facts.roots.items(),
        *((c.node, c.watermark) for c in children.values() if c.serving and not c.stuck),
    ]:
        full = counts.get(name, 0) >= SLOTS and not child.stuck
        if name == child.node or full or watermark < child.watermark or not _in_reach(facts, name, child.node):
            continue
        if not _rooted(facts, edges, name):
            continue
        far = facts.policy == "PreferSame" and facts.domains.get(name) != facts.domains.get(child.node)
        options.append(
            ((child.node, name) in facts.accused, far, name == facts.source, -watermark, counts.get(name, 0), name)
        )
    return min(options)[-1] if options else None
