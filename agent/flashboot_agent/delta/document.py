"""A delta as a file: header, metadata, runs, table of chunks, digests of spans, bodies, trailer
(docs/reference/delta-format.md).

Holds always: nothing of the front, which is all that is before the bodies, is believed before its digest was compared,
and no body before that of its span was; what is wrong is an error that names the file; sizes are compared before
anything is allocated for them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES, chunk_count
from flashboot_agent.core.digest import root_digest
from flashboot_agent.core.errors import DeltaDamaged
from flashboot_agent.delta import spans, words
from flashboot_agent.delta.trailer import TRAILER
from flashboot_agent.delta.words import WORD_BYTES, Run
from flashboot_agent.wire.base import Digest, Text, WireModel

MAGIC: Final = b"FBDELTA\0"
VERSION: Final = 2
HEADER: Final = struct.Struct("<8sHHIQIIQ24s")
"""Magic, version, flags (0), bytes of a chunk, of the image, of the metadata, of the runs, of the bodies, zeros."""
ROW: Final = 20
"""Bytes of the table per chunk: digest of the base, digest of the result, mode and bytes of the body."""
SAME: Final = 0
SPARSE: Final = 1
RAW: Final = 2
MAX_METADATA: Final = 1 << 20
MAX_RUN_BYTES: Final = 8 * words.MAX_RUNS
"""As many as MAX_IMAGE needs."""
MAX_IMAGE: Final = 1 << 50

Version = int


class Metadata(WireModel):
    """What the delta is between. The digests are roots over the tables of chunk digests."""

    schema_version: Literal[1] = 1
    subject: Literal["arena", "checkpoint"]
    content: Digest
    """Of what does not change: the layout of an arena, or names, dtypes and shapes of a checkpoint's tensors."""
    base_version: int = Field(ge=0, lt=1 << 63)
    new_version: int = Field(ge=0, lt=1 << 63)
    base_digest: Digest
    result_digest: Digest
    changed: int = Field(ge=0)
    """Elements."""
    note: Text = ""

    def versions(self) -> str:
        return f"{self.base_version} → {self.new_version}"


@dataclass(frozen=True)
class Table:
    """Columns with an entry per chunk."""

    base: bytes
    """8 bytes each, as in an arena's table of digests."""
    result: bytes
    modes: list[int]
    sizes: list[int]
    """Bytes of bodies."""

    def to_bytes(self) -> bytes:
        packed = array("I", [mode << 30 | size for mode, size in zip(self.modes, self.sizes, strict=True)])
        return self.base + self.result + packed.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, count: int) -> Table:
        packed = array("I", data[16 * count :])
        return cls(
            data[: 8 * count], data[8 * count : 16 * count], [p >> 30 for p in packed], [p & MASK for p in packed]
        )

    def rows(self, first: int, last: int) -> array[int]:
        """Of chunks [first, last), as `_native` takes them."""
        base, result = (array("Q", column[8 * first : 8 * last]) for column in (self.base, self.result))
        rows = array("Q")
        for mode, size, before, after in zip(self.modes[first:last], self.sizes[first:last], base, result, strict=True):
            rows.extend((mode, size, before, after, 0))
        return rows


MASK: Final = (1 << 30) - 1


@dataclass(frozen=True)
class Contents:
    """Everything but the bodies and the trailer."""

    metadata: Metadata
    nbytes: int
    """Of the image: the arena, or the checkpoint's tensors."""
    runs: list[Run]
    table: Table
    spans: bytes
    """SHA-256 of each span of the bodies (delta/spans.py)."""

    @property
    def body_bytes(self) -> int:
        return sum(self.table.sizes)

    def offsets(self) -> list[int]:
        """Where each chunk's body begins among the bodies, and where the last one ends."""
        return [0, *accumulate(self.table.sizes)]

    def to_bytes(self) -> bytes:
        """All that is before the bodies."""
        text, runs = self.metadata.to_json(), runs_to_bytes(self.runs)
        sizes = (DIGEST_CHUNK_BYTES, self.nbytes, len(text), len(runs), self.body_bytes)
        return HEADER.pack(MAGIC, VERSION, 0, *sizes, b"") + text + runs + self.table.to_bytes() + self.spans


def runs_to_bytes(runs: list[Run]) -> bytes:
    """LEB128 numbers of bytes · 8 + format."""
    out, begin = bytearray(), 0
    for run in runs:
        value = (run.end - begin) << 3 | run.format
        while value >= 128:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
        begin = run.end
    return bytes(out)


def runs_from_bytes(data: bytes) -> Iterator[Run]:
    """Raises ValueError."""
    end = value = shift = count = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            end += value >> 3
            count += 1
            if count > words.MAX_RUNS:
                raise ValueError(f"more than {words.MAX_RUNS} runs")
            yield Run(end, value & 7)
            value = shift = 0
        elif shift > 63:
            raise ValueError("a run of more than 64 bits")
    if shift:
        raise ValueError("the runs end inside a number")


@dataclass(frozen=True)
class Header:
    """What the first bytes of a file say: where everything is."""

    nbytes: int
    metadata_bytes: int
    run_bytes: int
    body_bytes: int

    @property
    def chunks(self) -> int:
        return chunk_count(self.nbytes)

    @property
    def bodies_at(self) -> int:
        table = ROW * self.chunks + spans.DIGEST * spans.span_count(self.body_bytes)
        return HEADER.size + self.metadata_bytes + self.run_bytes + table

    @property
    def trailer_at(self) -> int:
        return self.bodies_at + self.body_bytes

    @property
    def file_bytes(self) -> int:
        return self.trailer_at + TRAILER.size


def read_header(data: bytes, path: Path | str) -> Header:
    """Raises DeltaDamaged."""
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise DeltaDamaged(f"{path} is no delta: it does not begin as one")
    _, version, flags, chunk, nbytes, text, runs, bodies, zeros = HEADER.unpack(data[: HEADER.size])
    if (version, flags) != (VERSION, 0):
        raise DeltaDamaged(f"{path} is a delta of version {version} (flags {flags}); this program reads {VERSION}")
    limits = 0 < nbytes <= MAX_IMAGE and text <= MAX_METADATA and runs <= MAX_RUN_BYTES and bodies <= nbytes
    if chunk != DIGEST_CHUNK_BYTES or not limits or any(zeros):
        raise DeltaDamaged(f"{path}: sizes in the header that no delta has")
    return Header(nbytes, text, runs, bodies)


def read_contents(header: Header, data: bytes, path: Path | str) -> Contents:
    """`data`: everything between the header and the bodies, compared with its digest.

    Raises DeltaDamaged."""
    text, rest = data[: header.metadata_bytes], data[header.metadata_bytes :]
    try:
        metadata = Metadata.model_validate_json(text)
        runs = list(runs_from_bytes(rest[: header.run_bytes]))
        require_runs(runs, header.nbytes)
    except ValidationError as error:
        raise DeltaDamaged(f"{path}: {wrong(error)}") from error
    except ValueError as error:
        raise DeltaDamaged(f"{path}: {error}") from error
    end = header.run_bytes + ROW * header.chunks
    table = Table.from_bytes(rest[header.run_bytes : end], header.chunks)
    for chunk, (mode, size) in enumerate(zip(table.modes, table.sizes, strict=True)):
        whole = min(DIGEST_CHUNK_BYTES, header.nbytes - chunk * DIGEST_CHUNK_BYTES)
        if not {SAME: size == 0, SPARSE: 0 < size < whole, RAW: size == whole}.get(mode, False):
            raise DeltaDamaged(f"{path}: chunk {chunk} has a body of {size} bytes in mode {mode}")
    contents = Contents(metadata, header.nbytes, runs, table, rest[end:])
    if contents.body_bytes != header.body_bytes:
        raise DeltaDamaged(f"{path}: bodies of {contents.body_bytes} bytes, the header says {header.body_bytes}")
    roots = (root_digest(table.base), root_digest(table.result))
    if roots != (metadata.base_digest, metadata.result_digest):
        raise DeltaDamaged(f"{path}: the digests of its chunks are not those of versions {metadata.versions()}")
    return contents


def wrong(error: ValidationError) -> str:
    """The first thing that is wrong with a document; a stranger's may have any number."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def require_runs(runs: list[Run], nbytes: int) -> None:
    """Raises ValueError; what `_native` asks for, told before a chunk is looked at."""
    begin = 0
    for run in runs:
        word = WORD_BYTES[run.format]
        if run.end <= begin or run.end > nbytes or begin % word or run.end % word:
            raise ValueError(f"a run of words of {word} bytes from byte {begin} to {run.end} of {nbytes}")
        begin = run.end
    if begin != nbytes:
        raise ValueError(f"runs that end at byte {begin} of {nbytes}")


assert len(WORD_BYTES) == 8, "a run has three bits for the format of its words"
