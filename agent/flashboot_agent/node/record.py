"""The record beside an arena: what it is and how far it got, written so that a kill at any instant leaves it readable.

    byte 0        magic
    byte 64…      the marks: how far each lane got, and byte counters; `_native.Marks` lays them out and writes them
    4 KiB, 2 MiB  two slots for the header (JSON): generation, length, checksum, text; the older one is overwritten
    4 MiB…        the layout document, then the chunk digests; written before the header that tells their sizes

The memory dies with the machine, so only the death of the process matters: a store of eight bytes is never torn by it,
a longer write may be. Holds always: the header names documents only after they are complete, and the marks count bytes
that were verified against the digests which the header names. A header from before there were lanes is one of one lane,
and its words mean the same.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, ValidationError

from flashboot_agent._native import Marks
from flashboot_agent.core import chunks, digest
from flashboot_agent.core.identity import document_digest
from flashboot_agent.core.lanes import lane_bounds
from flashboot_agent.memory.memfd import write_all
from flashboot_agent.wire.arena import MAX_LANES, ArenaOwner, ArenaState, Way
from flashboot_agent.wire.base import Digest, Time, Uid, WireModel

MAGIC: Final = b"FBRECRD1"
SLOTS: Final = (4096, 2 << 20)
SLOT_BYTES: Final = 1 << 20
DOCUMENTS: Final = 4 << 20
HEAD: Final = struct.Struct("<QQ8s")


class Between(WireModel):
    """An arena's bytes are one of these versions, or neither while they are written."""

    base: int
    new: int
    base_digest: Digest
    new_digest: Digest

    def __str__(self) -> str:
        return f"{self.base} → {self.new}"


class ArenaRecord(ArenaOwner):
    """The header. Fields of a later version are ignored, so that a rolled-back agent keeps what it can."""

    model_config = ConfigDict(extra="ignore")

    schema_version: Literal[1] = 1
    way: Way
    state: ArenaState
    bytes: int
    lanes: Annotated[int, Field(ge=1, le=MAX_LANES)] = 1
    """How the bytes are cut (core/lanes.py); never changes."""
    seed_pod: Uid | None = None
    identity: Digest | None = None
    digest: Digest | None = None
    created_at: Time
    started_at: Time | None = None
    sealed_at: Time | None = None
    used_at: Time | None = None
    """When the last of its pods and children left it; None: none has since it was sealed."""
    layout_bytes: int = 0
    layout_digest: Digest | None = None
    digests_bytes: int = 0
    version: int = 0
    """Of the weights."""
    updatable: bool = False
    """It is, or will be, sealed so that it can be updated in place."""
    between: Between | None = None
    """With the state `updating`, which an agent from before there were updates does not know: it drops the arena."""


class RecordDamaged(Exception):
    """The record can't be believed; the arena is dropped and made anew."""


class RecordFile:
    """A record memfd. Belongs to the arena's region, which closes the descriptor. One writer at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._generation = 0

    def save(self, record: ArenaRecord) -> None:
        """Replace the header."""
        text = record.to_json()
        if len(text) > SLOT_BYTES - HEAD.size:
            raise ValueError(f"the record of {record.arena} has {len(text)} bytes; a slot takes {SLOT_BYTES}")
        self._generation += 1
        head = HEAD.pack(self._generation, len(text), _checksum(self._generation, text))
        write_all(self._fd, head + text, SLOTS[self._generation % 2])
        write_all(self._fd, MAGIC, 0)

    def load(self) -> ArenaRecord:
        """The newest whole header. Raises RecordDamaged."""
        if os.pread(self._fd, len(MAGIC), 0) != MAGIC:
            raise RecordDamaged("it was never written")
        generation, text = max((self._slot(offset) for offset in SLOTS), key=lambda slot: slot[0])
        if generation == 0:
            raise RecordDamaged("neither slot is whole")
        self._generation = generation
        try:
            return ArenaRecord.model_validate_json(text)
        except ValidationError as error:
            raise RecordDamaged(f"it has another form: {error}") from error

    def save_documents(self, layout: bytes, digests: bytes) -> None:
        """Write both; the caller saves a header without documents before, and one that tells the sizes after."""
        write_all(self._fd, layout, DOCUMENTS)
        write_all(self._fd, digests, DOCUMENTS + len(layout))

    def load_documents(self, record: ArenaRecord) -> tuple[bytes, bytes]:
        """Layout and chunk digests, checked against the header. Raises RecordDamaged."""
        layout = self.load_layout(record)
        digests = os.pread(self._fd, record.digests_bytes, DOCUMENTS + record.layout_bytes)
        if len(digests) != 8 * chunks.chunk_count(record.bytes) or digest.root_digest(digests) != record.digest:
            raise RecordDamaged("the chunk digests differ from the root digest")
        return layout, digests

    def load_layout(self, record: ArenaRecord) -> bytes:
        """Alone, while an update may have replaced a part of the digests. Raises RecordDamaged."""
        layout = os.pread(self._fd, record.layout_bytes, DOCUMENTS)
        if document_digest(layout) != record.layout_digest:
            raise RecordDamaged("the layout document differs from its digest")
        return layout

    def marks(self, record: ArenaRecord) -> Marks:
        """How far the arena of this header got. Raises RecordDamaged."""
        try:
            return Marks(self._fd, record.bytes, lane_bounds(record.bytes, record.lanes))
        except ValueError as error:
            raise RecordDamaged(f"its marks make no sense: {error}") from error

    def _slot(self, offset: int) -> tuple[int, bytes]:
        """(generation, text), or (0, b"") when the slot is torn or empty."""
        generation, length, checksum = HEAD.unpack(os.pread(self._fd, HEAD.size, offset))
        if not 0 < length <= SLOT_BYTES - HEAD.size:
            return 0, b""
        text = os.pread(self._fd, length, offset + HEAD.size)
        return (generation, text) if _checksum(generation, text) == checksum else (0, b"")


def _checksum(generation: int, text: bytes) -> bytes:
    return hashlib.blake2b(generation.to_bytes(8, "little") + text, digest_size=8).digest()
