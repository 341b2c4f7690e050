"""Values that say where they came from: what a loader is given to find out which element goes where. Pure.

All elements of all tensors are numbered. In pass p each element holds digit p of its number, as many bits as it has; in
the last pass the first digit's complement, so that an element that is the same in all passes is no copy of any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flashboot_agent.delta import fold
from flashboot_agent.delta.permutation import ITEM_BYTES, Run, Tensor, require_tensors

STEP: Final = 1 << 20
"""Elements that are looked at together: bounds the memory beside the model's."""
KEPT: Final = -1
DERIVED: Final = -2

Array = npt.NDArray[Any]


class Tags:
    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Raises BadRequest."""
        require_tensors(tensors)
        self.tensors = tensors
        self._sizes = [ITEM_BYTES[tensor.dtype] for tensor in tensors]
        self._starts = np.cumsum([0, *(math.prod(tensor.shape) for tensor in tensors)])
        self._total = int(self._starts[-1])
        self._digits = max(1, -(-self._total.bit_length() // (8 * min(self._sizes, default=8))))

    @property
    def passes(self) -> int:
        return self._digits + 1

    def values(self, number: int, tensor: int) -> Array:
        """The bits of a tensor's elements in this pass, flat, as unsigned integers."""
        size = self._sizes[tensor]
        first, last = int(self._starts[tensor]), int(self._starts[tensor + 1])
        result = np.empty(last - first, f"u{size}")
        for begin in range(first, last, STEP):
            end = min(begin + STEP, last)
            result[begin - first : end - first] = self._bits(np.arange(begin, end, dtype=np.uint64), number, size)
        return result

    def runs(self, seen: Sequence[Array], begin: int) -> tuple[list[Run], bool]:
        """`seen`: what a load left of neighbouring elements in each pass, as unsigned integers; `begin`: byte of the
        arena. Returns the runs of those that are copies, and whether some are neither copies nor constants."""
        found: list[Run] = []
        derived = False
        size = seen[0].itemsize
        for at in range(0, len(seen[0]), STEP):
            tensors, sources = self.origins([values[at : at + STEP] for values in seen])
            derived = derived or bool((tensors == DERIVED).any())
            found += fold.pieces(tensors, sources, size, begin + at * size)
        return fold.fold(found), derived

    def origins(self, seen: Sequence[Array]) -> tuple[Array, Array]:
        """For each element its tensor (or KEPT, or DERIVED) and its byte there."""
        size = seen[0].itemsize
        numbers = np.zeros(len(seen[0]), np.uint64)
        for digit in range(min(self._digits, 8 // size)):
            numbers |= seen[digit].astype(np.uint64) << np.uint64(8 * size * digit)
        copied = numbers < self._total
        numbers[~copied] = 0
        tensors = np.searchsorted(self._starts, numbers.astype(np.int64), side="right") - 1
        copied &= np.array([*self._sizes, 0])[tensors] == size
        same = np.ones(len(numbers), bool)
        for number, values in enumerate(seen):
            copied &= values == self._bits(numbers, number, size)
            same &= values == seen[0]
        sources = (numbers.astype(np.int64) - self._starts[tensors]) * size
        return np.where(copied, tensors, np.where(same, KEPT, DERIVED)), sources

    def _bits(self, numbers: Array, number: int, size: int) -> Array:
        if number == self._digits:
            numbers = ~numbers
        elif 8 * size * number >= 64:
            numbers = np.zeros_like(numbers)  # wide elements have fewer digits than narrow ones
        else:
            numbers = numbers >> np.uint64(8 * size * number)
        return numbers.astype(f"u{size}")
