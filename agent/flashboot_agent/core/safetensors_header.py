"""The header of a safetensors file, checked as strictly as the library that will load it, with messages for people.

The format: 8 bytes little-endian with the length of the header, the header (a JSON object: name → dtype, shape,
data_offsets; and `__metadata__`), then the tensors' bytes without gaps up to the end of the file.
Source: github.com/huggingface/safetensors, "Format", and its `Metadata::validate`.

Whatever bytes it gets, the answer is a Header, CheckpointTruncated or CheckpointMalformed; these name the file, and
where there is one the tensor and the offset. Stricter than the library in one thing: a key that an entry does not have
by the format is refused, not skipped. The check itself is csrc/safetensors.cpp, so that a model of 20,000 tensors costs
milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from flashboot_agent import _native
from flashboot_agent.core.errors import CheckpointMalformed, CheckpointTruncated

LENGTH_BYTES: Final = 8
MAX_HEADER: Final = 100_000_000
"""Bytes; the library refuses longer ones."""
BITS: Final[Mapping[str, int]] = _native.DTYPE_BITS
"""dtype → bits of one element (safetensors 0.8)."""


class Tensor(NamedTuple):
    """One tensor of a file; `begin` and `end` count bytes from the end of the header."""

    begin: int
    end: int
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """A sound header. Holds always: the tensors follow each other without gap or overlap, up to the end of the file."""

    columns: _native.SafetensorsHeader

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of their bytes. Made when it is asked for: objects take longer to make than to check."""
        return tuple(map(Tensor._make, self.columns.tensors()))

    @property
    def data_start(self) -> int:
        """Offset in the file of the first tensor's first byte."""
        return self.columns.data_start

    @property
    def data_bytes(self) -> int:
        return self.columns.data_bytes

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self.columns)


def header_length(start: bytes, file_bytes: int, name: str) -> int:
    """Length of the header in bytes, from the file's first 8 bytes (fewer when it is shorter).

    Raises CheckpointTruncated, CheckpointMalformed."""
    if len(start) < LENGTH_BYTES:
        raise CheckpointTruncated(f"{name} has {file_bytes} bytes; a safetensors file begins with an 8 byte length")
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER:
        raise CheckpointMalformed(
            f"{name}: its header claims {length} bytes, allowed are {MAX_HEADER}; not safetensors?"
        )
    if LENGTH_BYTES + length > file_bytes:
        raise CheckpointTruncated(f"{name} ends at byte {file_bytes}, its header alone at {LENGTH_BYTES + length}")
    return length


def check_header(text: bytes, file_bytes: int, name: str) -> Header:
    """Check a whole header of a file of `file_bytes`.

    Raises CheckpointTruncated when tensors lie beyond the end of the file, CheckpointMalformed."""
    try:
        return Header(_native.SafetensorsHeader(text, file_bytes))
    except _native.Malformed as error:
        raise CheckpointMalformed(f"{name}: {error}") from None
    except _native.Truncated as error:
        raise CheckpointTruncated(f"{name} {error}") from None
