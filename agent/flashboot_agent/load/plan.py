"""Where the tensors of a checkpoint go in memory, and which bytes of which file they are. Pure.

Holds always: the same headers give the same plan; tensors lie in the order of the files and, inside a file, of its
bytes, so that one system call reads many of them; each begins at a multiple of ALIGNMENT.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from flashboot_agent.core.errors import CheckpointMalformed
from flashboot_agent.core.safetensors_header import Header

ALIGNMENT: Final = 64
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


@dataclass(frozen=True)
class Plan:
    files: tuple[str, ...]
    tensors: tuple[Placed, ...]
    nbytes: int
    """Of the memory; a multiple of ALIGNMENT."""

    def extents(self) -> array[int]:
        """For `_native.bulk_read`: file, file offset, memory offset, length of each tensor that has bytes."""
        rows = array("Q")
        for tensor in self.tensors:
            if tensor.nbytes:
                rows.extend((tensor.file, tensor.file_offset, tensor.offset, tensor.nbytes))
        return rows

    def at(self, file: int, file_offset: int) -> Placed | None:
        """The tensor that has this byte of a file; None when it lies in a header or beyond."""
        for tensor in self.tensors:
            if tensor.file == file and 0 <= file_offset - tensor.file_offset < tensor.nbytes:
                return tensor
        return None


def plan(files: Sequence[tuple[str, Header]]) -> Plan:
    """Lay out all tensors of the files, in the order given.

    Raises CheckpointMalformed when two files hold a tensor of the same name."""
    tensors = tuple(_placed(files))
    end = tensors[-1].offset + tensors[-1].nbytes if tensors else 0
    return Plan(tuple(name for name, _ in files), tensors, _aligned(end))


def _placed(files: Sequence[tuple[str, Header]]) -> Iterator[Placed]:
    seen: dict[str, str] = {}
    offset = 0
    for number, (file, header) in enumerate(files):
        for begin, end, name, dtype, shape in header.tensors:
            if (other := seen.setdefault(name, file)) != file:
                raise CheckpointMalformed(f"tensor {name!a} is in {other} and in {file}")
            yield Placed(name, dtype, shape, offset, end - begin, number, header.data_start + begin)
            offset = _aligned(offset + end - begin)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
