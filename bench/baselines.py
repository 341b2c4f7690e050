"""Fan-out plans that FlashBoot does not use, for comparison in the same simulator: planners from facts to edges.

They fix their edges by a target's number, whether its parent is ready or not; `binomial` alone looks at who is
complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2

from flashboot_operator.core.fanout.model import Facts, Plan

Planner = Callable[[Facts], Plan]


def star(facts: Facts) -> Plan:
    """Everybody pulls from the source."""
    return ({m.node: facts.sources[0] for m in facts.members},)


def tree(order: Sequence[str], degree: int) -> Planner:
    """A tree in which each target feeds `degree` others and the source one. Degree 1 is a chain."""
    edges = {v: "s0" if i == 0 else order[(i - 1) // degree] for i, v in enumerate(order)}
    return lambda facts: ({m.node: edges[m.node] for m in facts.members},)


def two_trees(order: Sequence[str]) -> Planner:
    """Two trees on half of the bytes each; a target that feeds two others in one tree is a leaf in the other."""
    lanes = []
    for lane in range(2):
        mine = [v for i, v in enumerate(order) if i % 2 == lane] + [v for i, v in enumerate(order) if i % 2 != lane]
        lanes.append({v: "s0" if i == 0 else mine[(i - 1) // 2] for i, v in enumerate(mine)})
    return lambda facts: tuple({m.node: edges[m.node] for m in facts.members} for edges in lanes)


def binomial(facts: Facts) -> Plan:
    """Whole models: whoever has everything feeds one who has nothing; rounds double the holders."""
    size = facts.lanes[0]
    whole = [*facts.sources, *(m.node for m in facts.members if m.watermarks[0] >= size)]
    edges = {m.node: p for m in facts.members if (p := m.parents[0]) is not None}
    busy = {p for m in facts.members if (p := edges.get(m.node)) is not None and m.watermarks[0] < size}
    free = [v for v in whole if v not in busy]
    for m in facts.members:
        if m.node not in edges and free:
            edges[m.node] = free.pop(0)
    return (edges,)


def hypercube_ratio(targets: int, ideal_s: float, overhead_s: float, chunk_s: float) -> float:
    """The binomial pipeline on a hypercube in lock-step: b chunks take b + ⌈log2(n+1)⌉ − 1 steps of one chunk each."""
    chunks = ceil(ideal_s / chunk_s - 1e-9)
    return (chunks + ceil(log2(targets + 1)) - 1) * (overhead_s + ideal_s / chunks) / ideal_s


def chain_ratio(targets: int, ideal_s: float, overhead_s: float, chunk_s: float) -> float:
    """A chain with one request in flight, in closed form: the simulator must agree."""
    chunks = ceil(ideal_s / chunk_s - 1e-9)
    return (chunks + targets - 1) * (overhead_s + ideal_s / chunks) / ideal_s
