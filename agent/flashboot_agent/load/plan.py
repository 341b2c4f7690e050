"""Where the tensors of a checkpoint go in memory, and which bytes of which file they are. Pure (csrc/checkpoint.cpp).

Holds always: the same headers give the same plan; tensors lie in the order of the files and, inside a file, of its
bytes, so that one system call reads many of them; each begins at a multiple of ALIGNMENT. Objects are made of tensors
only when somebody asks for them: a load needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

from flashboot_agent import _native
from flashboot_agent.core.errors import CheckpointMalformed
from flashboot_agent.core.safetensors_header import Header

ALIGNMENT: Final = _native.TENSOR_ALIGNMENT
"""Bytes: a cache line, and more than any dtype or vector load needs."""


class Placed(NamedTuple):
    """One tensor in memory."""

    name: str
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    offset: int
    """Byte of the memory at which it begins."""
    nbytes: int
    file: int
    """Index into the plan's files."""
    file_offset: int


class Plan:
    """All tensors of the files, in the order given.

    Raises CheckpointMalformed when two files hold a tensor of the same name."""

    def __init__(self, files: Sequence[tuple[str, Header]]) -> None:
        self.files = tuple(name for name, _ in files)
        self._layout = _native.CheckpointLayout([header.columns for _, header in files])
        if twice := self._layout.twice():
            name, first, second = twice
            raise CheckpointMalformed(f"tensor {name} is in {self.files[first]} and in {self.files[second]}")

    @property
    def nbytes(self) -> int:
        """Of the memory; a multiple of ALIGNMENT."""
        return self._layout.nbytes

    @cached_property
    def tensors(self) -> tuple[Placed, ...]:
        return tuple(map(Placed._make, self._layout.tensors()))

    def extents(self) -> bytes:
        """For `_native.bulk_read`: file, file offset, memory offset, length of each tensor that has bytes."""
        return self._layout.extents()

    def at(self, file: int, file_offset: int) -> Placed | None:
        """The tensor that has this byte of a file; None when it lies in a header or beyond."""
        found = self._layout.at(file, file_offset)
        return Placed._make(found) if found else None
