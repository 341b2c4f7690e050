"""From one origin per element to few runs: rows of a cut matrix, transposed heads, experts one behind the other. Pure.

Neighbouring runs of one form that lie at equal steps in the tensor become one run with a loop more, and these again,
until nothing is won. Greedy from the left: not always the fewest, always the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from flashboot_agent.delta.permutation import MAX_DIMENSIONS, Run

Array = npt.NDArray[Any]


def pieces(tensors: Array, sources: Array, size: int, begin: int) -> Iterator[Run]:
    """Of neighbouring elements of `size` bytes from byte `begin` of the arena: tensor (below 0: none) and source byte
    of each. One run for every stretch that is a stretch of the tensor; rows at equal steps are one run already."""
    if not len(tensors):
        return
    breaks = np.flatnonzero((np.diff(tensors) != 0) | ((np.diff(sources) != size) & (tensors[1:] >= 0))) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [len(tensors)])))
    mine = tensors[starts] >= 0
    first, width, tensor, source = starts[mine], lengths[mine], tensors[starts[mine]], sources[starts[mine]]
    yield from _rows(first * size + begin, width * size, tensor, source)


def _rows(arena: Array, width: Array, tensor: Array, source: Array) -> Iterator[Run]:
    """The first fold, over arrays: a transposed matrix has as many stretches as elements."""
    count = len(arena)
    alike = (np.diff(tensor) == 0) & (np.diff(width) == 0) & (np.diff(arena) == width[:-1])
    step = np.diff(source)
    ends = np.flatnonzero((step[1:] != step[:-1]) | ~alike[1:] | ~alike[:-1]) + 1

    def run(at: int) -> Run:
        return Run(int(arena[at]), int(tensor[at]), int(source[at]), int(width[at]))

    at = 0
    for first, last in zip([0, *ends.tolist()], [*ends.tolist(), count - 1], strict=True):
        begin = max(first, at)
        if last > begin and alike[begin]:  # items begin to last are at equal steps
            yield from map(run, range(at, begin))
            yield run(begin)._replace(loops=((last - begin + 1, int(step[begin])),))
            at = last + 1
    yield from map(run, range(at, count))


def fold(runs: Iterable[Run]) -> list[Run]:
    """`runs` in the arena's order."""
    folded = list(_joined(runs))
    before = len(folded) + 1
    while len(folded) < before:
        before = len(folded)
        folded = list(_folded(folded))
    return folded


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Stretches that were looked at in parts become whole."""
    last: Run | None = None
    for run in runs:
        if last and _continues(last, run):
            last = last._replace(width=last.width + run.width)
            continue
        if last:
            yield last
        last = run
    if last:
        yield last


def _continues(one: Run, other: Run) -> bool:
    plain = not one.loops and not other.loops and one.tensor == other.tensor
    return plain and other.arena == one.end and other.source == one.source + one.width


def _folded(runs: list[Run]) -> Iterator[Run]:
    at = 0
    while at < len(runs):
        first = runs[at]
        end = at + 1
        if end < len(runs) and len(first.loops) < MAX_DIMENSIONS:
            step = runs[end].source - first.source
            while end < len(runs) and _next(runs[end - 1], runs[end], step):
                end += 1
        if end - at == 1:
            yield first
        else:
            yield first._replace(loops=((end - at, step), *first.loops))
        at = end


def _next(one: Run, other: Run, step: int) -> bool:
    alike = one.tensor == other.tensor and one.width == other.width and one.loops == other.loops
    return alike and one.end == other.arena and other.source - one.source == step
