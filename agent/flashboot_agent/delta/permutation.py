"""Which byte of an arena is a copy of which byte of a trainer's tensor: the permutation map, and its document.

Traced once per identity from the engine's own loader (engine/trace.py); whoever has the map and the tensors makes the
arena's bytes without an engine (delta/gather.py). Bytes that no tensor gives (rotary tables, padding, gaps) are *kept*:
they are those of the arena, whatever its version.

Holds always: runs and kept ranges lie side by side and cover the arena, and no run reads beyond its tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, ValidationError

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.wire.base import Digest, WireModel

MAX_DOCUMENT: Final = 256 << 20
"""Bytes of a map's document; 20,000 tensors need some two million."""
MAX_DIMENSIONS: Final = 8

Count = Annotated[int, Field(ge=0, lt=1 << 50)]
Text = Annotated[str, Field(min_length=1, max_length=1024)]
Positive = Annotated[int, Field(gt=0, lt=1 << 50)]
Step = Annotated[int, Field(gt=-(1 << 50), lt=1 << 50)]
Shape = Annotated[tuple[Count, ...], Field(max_length=MAX_DIMENSIONS)]
Loops = Annotated[tuple[tuple[Positive, Step], ...], Field(max_length=MAX_DIMENSIONS)]

ITEM_BYTES: Final = {
    "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "int16": 2, "uint16": 2, "bfloat16": 2, "float16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
"""Dtypes of tensors that can be traced (every bit pattern is a value), as torch prints them."""


class Tensor(NamedTuple):
    """One of the trainer's, whole."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Run(NamedTuple):
    """Neighbouring bytes of the arena: copies of `width` bytes each, which lie in the tensor as nested loops say."""

    arena: int
    tensor: int
    """Index into the map's tensors."""
    source: int
    """Byte of the tensor at which the first copy begins."""
    width: int
    loops: tuple[tuple[int, int], ...] = ()
    """Count and step in bytes, the outermost first."""

    @property
    def nbytes(self) -> int:
        return self.width * math.prod(count for count, _ in self.loops)

    @property
    def end(self) -> int:
        return self.arena + self.nbytes

    def reach(self) -> tuple[int, int]:
        """First byte of the tensor that is read, and the one behind the last."""
        spans = [(count - 1) * step for count, step in self.loops]
        first = self.source + sum(span for span in spans if span < 0)
        return first, self.source + sum(span for span in spans if span > 0) + self.width


class Kept(NamedTuple):
    begin: int
    end: int


@dataclass(frozen=True)
class PermutationMap:
    layout_digest: str
    """Of the arena's layout document: the map belongs to no other."""
    arena_bytes: int
    tensors: tuple[Tensor, ...]
    """All that the trainer has, also those that this rank needs nothing of."""
    runs: tuple[Run, ...]
    """In the arena's order."""
    kept: tuple[Kept, ...]

    @classmethod
    def of_runs(
        cls, layout_digest: str, arena_bytes: int, tensors: Sequence[Tensor], runs: Sequence[Run]
    ) -> PermutationMap:
        """What no run gives is kept. Raises BadRequest, naming the place."""
        kept, at = [], 0
        for run in runs:
            if run.arena > at:
                kept.append(Kept(at, run.arena))
            at = run.end
        if at < arena_bytes:
            kept.append(Kept(at, arena_bytes))
        return cls(layout_digest, arena_bytes, tuple(tensors), tuple(runs), tuple(kept))

    def __post_init__(self) -> None:
        """Raises BadRequest, naming the place."""
        require_tensors(self.tensors)
        for run in self.runs:
            _require_run(run, self.tensors)
        pieces = sorted([(run.arena, run.end) for run in self.runs] + list(self.kept))
        at = 0
        for begin, end in [*pieces, (self.arena_bytes, self.arena_bytes)]:
            if begin != at or end < begin:
                what = "is covered twice" if begin < at else "is covered by nothing"
                raise BadRequest(f"permutation map: byte {min(begin, at)} of the arena {what}")
            at = end

    @cached_property
    def needed(self) -> frozenset[str]:
        """Names of the tensors that something of this arena is copied from."""
        return frozenset(self.tensors[run.tensor].name for run in self.runs)

    @cached_property
    def runs_of(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for run in self.runs:
            found.setdefault(self.tensors[run.tensor].name, []).append(run)
        return found

    @cached_property
    def named(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    def to_bytes(self) -> bytes:
        return _Document(
            layout_digest=self.layout_digest,
            arena_bytes=self.arena_bytes,
            tensors=self.tensors,
            runs=self.runs,
            kept=self.kept,
        ).to_json()

    @classmethod
    def from_bytes(cls, document: bytes) -> PermutationMap:
        """Raises BadRequest, naming the place."""
        if len(document) > MAX_DOCUMENT:
            raise BadRequest(f"permutation map: {len(document)} bytes, at most {MAX_DOCUMENT} are allowed")
        try:
            read = _Document.model_validate_json(document)
        except ValidationError as error:
            raise BadRequest(f"permutation map: {error}") from error
        return cls(
            read.layout_digest,
            read.arena_bytes,
            tuple(map(Tensor._make, read.tensors)),
            tuple(map(Run._make, read.runs)),
            tuple(map(Kept._make, read.kept)),
        )


class _Document(WireModel):
    """As JSON: rows, because a model has tens of thousands of them."""

    schema_version: Literal[1] = 1
    layout_digest: Digest
    arena_bytes: Count
    tensors: Sequence[tuple[Text, Text, Shape]]
    runs: Sequence[tuple[Count, Count, Count, Positive, Loops]]
    kept: Sequence[tuple[Count, Count]]


def require_tensors(tensors: Sequence[Tensor]) -> None:
    """Raises BadRequest for two of one name, and for elements that can't be traced."""
    names = set()
    for tensor in tensors:
        if tensor.dtype not in ITEM_BYTES:
            raise BadRequest(f"{tensor.name}: elements of {tensor.dtype} can't be traced; use the converter")
        if tensor.name in names:
            raise BadRequest(f"permutation map: two tensors are named {tensor.name}")
        names.add(tensor.name)


def _require_run(run: Run, tensors: Sequence[Tensor]) -> None:
    if run.tensor >= len(tensors):
        raise BadRequest(f"permutation map: the run at byte {run.arena} is of tensor {run.tensor} of {len(tensors)}")
    tensor = tensors[run.tensor]
    first, last = run.reach()
    if first < 0 or last > tensor.nbytes:
        raise BadRequest(
            f"permutation map: the run at byte {run.arena} reads bytes {first} to {last} of {tensor.name}, "
            f"which has {tensor.nbytes}"
        )
