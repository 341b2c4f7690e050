"""Which copies bring a run's part of a box of its tensor into the arena: few, strided, a native call each. Pure.

A run's loops are looked at as steps along single dimensions of the tensor; then a box cuts each loop to a range, and
what is left is a copy by loops again. Loops that go over a dimension's end are taken apart first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from flashboot_agent.delta.permutation import ITEM_BYTES, Run, Tensor


class Loop(NamedTuple):
    turns: int
    source: int
    """Bytes from one piece to the next."""
    target: int


class Cut(NamedTuple):
    target: int
    source: int
    width: int
    loops: tuple[Loop, ...]
    """The outermost first."""

    def table(self) -> array[int]:
        """As `_native` takes them."""
        return array("q", [number for loop in self.loops for number in loop])


class Box(NamedTuple):
    begin: tuple[int, ...]
    shape: tuple[int, ...]


class _Along(NamedTuple):
    """A loop along one dimension."""

    dimension: int
    """-1: it stays where it is."""
    turns: int
    step: int
    """In elements of that dimension."""
    target: int


def cuts(run: Run, tensor: Tensor, box: Box) -> Iterator[Cut]:
    """From the box's bytes, which lie side by side, to the arena's: together all of the run that is in the box."""
    if box.shape == tensor.shape:
        yield _simple(Cut(run.arena, run.source, run.width, tuple(_loops(run))))
    elif prod(box.shape):
        yield from _Boxed(tensor, box).cuts(run.arena, run.source, run.width, run.loops)


def _loops(run: Run) -> Iterator[Loop]:
    behind = run.nbytes
    for count, step in run.loops:
        behind //= count
        yield Loop(count, step, behind)


def _simple(cut: Cut) -> Cut:
    """The same in fewer loops: none of one turn, and none over pieces that lie side by side in both memories."""
    loops: list[Loop] = []
    width = cut.width
    for loop in reversed(cut.loops):
        if loop.turns == 1:
            continue
        inner = loops[-1] if loops else None
        if inner is None and loop.source == loop.target == width:
            width *= loop.turns
        elif inner and loop[1:] == (inner.turns * inner.source, inner.turns * inner.target):
            loops[-1] = inner._replace(turns=inner.turns * loop.turns)
        else:
            loops.append(loop)
    return Cut(cut.target, cut.source, width, tuple(reversed(loops)))


class _Boxed:
    def __init__(self, tensor: Tensor, box: Box) -> None:
        self._shape, self._box, self._size = tensor.shape, box, ITEM_BYTES[tensor.dtype]
        self._strides, self._mine = (
            [self._size * prod(shape[at + 1 :]) for at in range(len(shape))] for shape in (tensor.shape, box.shape)
        )

    def cuts(self, target: int, source: int, width: int, loops: Sequence[tuple[int, int]]) -> Iterator[Cut]:
        at = [source // stride % size for stride, size in zip(self._strides, self._shape, strict=True)]
        along = self._along(at, width, loops)
        if along is not None:
            yield from self._boxed(target, at, along)
        elif loops:
            (count, step), *inner = loops
            nbytes = width * prod(each for each, _ in inner)
            for turn in range(count):
                yield from self.cuts(target + turn * nbytes, source + turn * step, width, inner)
        else:
            end = self._end(source, width)
            yield from self.cuts(target, source, end - source, ())
            yield from self.cuts(target + end - source, end, source + width - end, ())

    def _end(self, source: int, width: int) -> int:
        """Where a stretch is to be cut in two, that goes over the ends of rows and is not made of whole ones."""
        for stride, size in zip(reversed(self._strides), reversed(self._shape), strict=True):
            row, end = stride * size, source + width
            if source % row:
                return source - source % row + row
            if end % row:
                return end - end % row
        raise AssertionError("a stretch of whole rows is along dimensions")

    def _along(self, at: Sequence[int], width: int, loops: Sequence[tuple[int, int]]) -> list[_Along] | None:
        """All loops and the stretch, along dimensions that they do not leave; None: there are none such."""
        found: list[_Along] = []
        stretch = self._counted(at, len(self._shape) - 1, width // self._size, self._size)
        if stretch is None:
            return None
        found, nbytes = stretch, width
        for count, step in reversed(loops):
            mine = self._stepped(at, count, step, nbytes)
            if mine is None:
                return None
            found = mine + found
            nbytes *= count
        for dimension, size in enumerate(self._shape):
            ways = [(each.turns - 1) * each.step for each in found if each.dimension == dimension]
            low, high = sum(way for way in ways if way < 0), sum(way for way in ways if way > 0)
            if at[dimension] + low < 0 or at[dimension] + high >= size:
                return None
        return found

    def _stepped(self, at: Sequence[int], count: int, step: int, target: int) -> list[_Along] | None:
        if step == 0:
            return [_Along(-1, count, 0, target)]
        for dimension, stride in enumerate(self._strides):
            if abs(step) >= stride and self._shape[dimension] > 1:
                if step % stride:
                    return None
                if step == stride:
                    return self._counted(at, dimension, count, target)
                return [_Along(dimension, count, step // stride, target)]
        return None

    def _counted(self, at: Sequence[int], dimension: int, count: int, target: int) -> list[_Along] | None:
        """Neighbours of a dimension; whole rows of it go on along the dimension above."""
        if count == 1:
            return []
        if dimension < 0:
            return None
        size = self._shape[dimension]
        if at[dimension] + count <= size:
            return [_Along(dimension, count, 1, target)]
        if at[dimension] or count % size:
            return None
        above = self._counted(at, dimension - 1, count // size, target * size)
        return None if above is None else [*above, _Along(dimension, size, 1, target)]

    def _boxed(self, target: int, at: Sequence[int], along: list[_Along]) -> Iterator[Cut]:
        """Of several loops along a dimension that is cut, the innermost gets a range for each turn of the others."""
        innermost = {each.dimension: number for number, each in enumerate(along)}
        taken = [
            number
            for number, each in enumerate(along)
            if each.dimension >= 0 and self._is_cut(each.dimension) and innermost[each.dimension] != number
        ]
        for turns in product(*(range(along[number].turns) for number in taken)):
            ranges = [(0, each.turns) for each in along]
            for number, turn in zip(taken, turns, strict=True):
                ranges[number] = turn, turn + 1
            place = list(at)
            for each, (begin, _) in zip(along, ranges, strict=True):
                if each.dimension >= 0:
                    place[each.dimension] += begin * each.step
            for dimension in range(len(self._shape)):
                if not self._is_cut(dimension):
                    continue
                number = innermost.get(dimension, -1)
                begin, end = self._inside(dimension, place[dimension], along[number] if number >= 0 else None)
                if number >= 0:
                    ranges[number] = begin, end
                    place[dimension] += begin * along[number].step
                if begin >= end:
                    break
            else:
                yield self._cut(target, place, along, ranges)

    def _is_cut(self, dimension: int) -> bool:
        return self._box.shape[dimension] != self._shape[dimension]

    def _inside(self, dimension: int, at: int, loop: _Along | None) -> tuple[int, int]:
        """Which turns of the loop are in the box."""
        begin = self._box.begin[dimension] - at
        last = begin + self._box.shape[dimension] - 1
        if loop is None:
            return (0, 1) if begin <= 0 <= last else (0, 0)
        if loop.step < 0:
            begin, last = -last, -begin
        step = abs(loop.step)
        return max(0, -(-begin // step)), min(loop.turns, last // step + 1)

    def _cut(self, target: int, place: list[int], along: list[_Along], ranges: list[tuple[int, int]]) -> Cut:
        source = sum(
            (mine - begin) * stride for mine, begin, stride in zip(place, self._box.begin, self._mine, strict=True)
        )
        loops = []
        for each, (begin, end) in zip(along, ranges, strict=True):
            step = each.step * self._mine[each.dimension] if each.dimension >= 0 else 0
            loops.append(Loop(end - begin, step, each.target))
            target += begin * each.target
        return _simple(Cut(target, source, self._size, tuple(loops)))
