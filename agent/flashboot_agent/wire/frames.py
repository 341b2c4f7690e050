"""Child ↔ parent: the chunk protocol on a byte stream, without I/O.

One connection is about one arena. The child speaks first, and every request gets one reply, in order:

    child                             parent
    MetaRequest(arena, child)    →
                                 ←    MetaReply(...) + the digest table + the layout document, as raw bytes
    Pull(offset, length, wait)   →    at least two of them in flight
    Pull(...)                    →
                                 ←    Data(offset, watermark, length) + the bytes; length is what was asked for, or
                                      0 when the parent's verified bytes did not get there within `wait`
                                 ←    or Trouble(problem): the parent hangs up after it

The watermark of a reply is the end of the parent's run of verified bytes that contains `offset`, or `offset` when there
is none: a parent that fills several lanes has several runs. After an empty reply at offset o every Pull beyond o is
answered empty at once, until one at or before o, so that a child never gets a later byte before an earlier one. Pull
and Data are parsed in C++ (csrc/frames.hpp) where bytes move.

With carrier "nixl" the bytes go beside the connection: the child sends NixlTarget after the metadata, the parent writes
what a Pull asks for into the child's memory, and its Data has no tail; everything else is the same.

A frame is a header (magic, version, type, zero, length of the body; all numbers little-endian), the body, and what the
body announces as a *tail*: raw bytes that the reader takes in the manner that suits it, such as straight into an arena.

What always holds: lengths are checked against the type's limit before anything is kept, so that a parser never holds
more than one body; whatever bytes come, the answer is a valid frame or FrameError; a parser never asks for a byte
beyond its frame, so that the tail is still untouched when the frame is there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from flashboot_agent.wire.base import ArenaId, Digest, Name, WireModel, without_empty
from flashboot_agent.wire.layout import MAX_LAYOUT
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.update import Version

MAGIC: Final = b"FBCH"
VERSION: Final = 2
HEADER: Final = struct.Struct("<4sBBHI")
_PULL: Final = struct.Struct("<QII")
_DATA: Final = struct.Struct("<QQI")

MAX_PULL: Final = 4 << 20
"""Bytes of one Data tail."""
MAX_WAIT_MS: Final = 60_000
"""The longest long poll."""
MAX_ARENA: Final = 1 << 50
MAX_DIGESTS: Final = 128 << 20
"""Bytes of a digest table: enough for 16 TiB in 1 MiB chunks."""
MAX_NIXL_METADATA: Final = 64 << 10
"""Bytes; an agent with one region and a few network devices needs some hundreds."""
MAX_TROUBLE: Final = 32768
"""Bytes of a Problem as JSON; 4096 characters fit in whatever way they are escaped."""


class FrameError(ValueError):
    """These bytes make no frame of this protocol; the stream is lost. Becomes TornFrame in a transport."""


class MetaRequest(WireModel):
    arena: ArenaId
    child: Name
    """Name of the node that asks, for the parent's status."""
    carrier: Literal["stream", "nixl"] = "stream"
    """What shall carry the bytes; BadRequest from a parent that does not serve it."""


class MetaReply(WireModel):
    """The tail is `digests_bytes` of digest table, then `layout_bytes` of layout document."""

    identity: Digest
    nbytes: Annotated[int, Field(gt=0, le=MAX_ARENA)]
    digest: Digest
    digest_chunk_bytes: Annotated[int, Field(ge=4096, le=1 << 30, multiple_of=4096)]
    digests_bytes: Annotated[int, Field(ge=8, le=MAX_DIGESTS)]
    layout_bytes: Annotated[int, Field(ge=0, le=MAX_LAYOUT)]
    layout_digest: Digest
    """Of the document: a flipped bit in it would send right bytes to the wrong tensors."""
    version: Version = 0
    """Of the weights; left out while it is 0, which a child that does not know it accepts."""

    @model_validator(mode="after")
    def _table_fits_arena(self) -> MetaReply:
        wanted = 8 * -(-self.nbytes // self.digest_chunk_bytes)
        if self.digests_bytes != wanted:
            raise ValueError(f"a digest table of {self.digests_bytes} bytes; {self.nbytes} bytes need {wanted}")
        return self

    @model_serializer(mode="wrap")
    def _bare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_empty(handler(self), "version")


class NixlTarget(WireModel):
    """Where the child wants bytes [start, start + nbytes) of the arena. The tail is its agent's metadata."""

    agent: Annotated[str, StringConstraints(pattern=r"^flashboot-[0-9a-f]{32}$")]
    start: Annotated[int, Field(ge=0, le=MAX_ARENA)]
    nbytes: Annotated[int, Field(gt=0, le=MAX_ARENA)]
    address: Annotated[int, Field(gt=0, lt=1 << 64)]
    """Of byte `start` in the child's process."""
    metadata_bytes: Annotated[int, Field(gt=0, le=MAX_NIXL_METADATA)]


@dataclass(frozen=True, slots=True)
class Pull:
    """Ask for bytes [offset, offset + length) once all of them are verified, at most `wait_ms` from now."""

    offset: int
    length: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Data:
    """The tail is `length` bytes from `offset`; `watermark` is the end of the sender's verified run around `offset`."""

    offset: int
    watermark: int
    length: int


@dataclass(frozen=True, slots=True)
class Trouble:
    problem: Problem


Frame = MetaRequest | MetaReply | Pull | Data | Trouble | NixlTarget

_TYPES: Final[dict[type, int]] = {MetaRequest: 1, MetaReply: 2, Pull: 3, Data: 4, Trouble: 5, NixlTarget: 6}
_NAMES: Final[dict[int, str]] = {number: cls.__name__ for cls, number in _TYPES.items()}
_LIMITS: Final[dict[int, tuple[int, int]]] = {
    1: (2, 1024),
    2: (2, 1024),
    3: (_PULL.size, _PULL.size),
    4: (_DATA.size, _DATA.size),
    5: (2, MAX_TROUBLE),
    6: (2, 1024),
}
"""Type → least and greatest length of the body."""


def encode(frame: Frame) -> bytes:
    """Header and body of a frame; the tail, if it has one, is the caller's to send."""
    match frame:
        case MetaRequest() | MetaReply() | NixlTarget():
            body = frame.to_json()
        case Pull(offset, length, wait_ms):
            body = _PULL.pack(offset, length, wait_ms)
        case Data(offset, watermark, length):
            body = _DATA.pack(offset, watermark, length)
        case Trouble(problem):
            body = problem.to_json()
    return HEADER.pack(MAGIC, VERSION, _TYPES[type(frame)], 0, len(body)) + body


class FrameParser:
    """Bytes in, frames out. One per direction of a connection; useless after its first FrameError."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._kind = 0
        self._body = 0
        self._in_body = False

    @property
    def wants(self) -> int:
        """How many more bytes the present header or body takes; never 0. Feed at most so many."""
        return (self._body if self._in_body else HEADER.size) - len(self._buffer)

    @property
    def idle(self) -> bool:
        """True between two frames: a stream that ends here ends cleanly."""
        return not self._in_body and not self._buffer

    def feed(self, data: bytes | memoryview) -> Frame | None:
        """Take at most `wants` bytes; give the frame that they complete, if they do.

        Raises FrameError as soon as the bytes can't become a frame any more."""
        if len(data) > self.wants:
            raise ValueError(f"fed {len(data)} bytes, wanted at most {self.wants}")
        self._buffer += data
        if not self._in_body:
            self._check_start()
        if self.wants:
            return None
        if not self._in_body:
            self._open_body()
            return None
        frame = _decode(self._kind, bytes(self._buffer))
        self._buffer.clear()
        self._in_body = False
        return frame

    def _check_start(self) -> None:
        """Refuse a peer of another protocol at its first wrong byte, not after a whole header's wait."""
        if self._buffer[:4] != MAGIC[: len(self._buffer)]:
            raise FrameError(f"no chunk protocol: the frame begins with {bytes(self._buffer[:4])!r}")

    def _open_body(self) -> None:
        _, version, kind, zero, length = HEADER.unpack(self._buffer)
        if version != VERSION:
            raise FrameError(f"the peer speaks version {version} of the chunk protocol, we speak {VERSION}")
        if kind not in _LIMITS:
            raise FrameError(f"unknown frame type {kind}")
        if zero != 0:
            raise FrameError(f"reserved header bits are {zero:#x}")
        least, greatest = _LIMITS[kind]
        if not least <= length <= greatest:
            raise FrameError(f"a {_NAMES[kind]} frame of {length} bytes; allowed are {least} to {greatest}")
        self._buffer.clear()
        self._kind, self._body, self._in_body = kind, length, True


def _decode(kind: int, body: bytes) -> Frame:
    try:
        match kind:
            case 1:
                return MetaRequest.model_validate_json(body)
            case 2:
                return MetaReply.model_validate_json(body)
            case 3:
                return _checked_pull(*_PULL.unpack(body))
            case 4:
                return _checked_data(*_DATA.unpack(body))
            case 6:
                return NixlTarget.model_validate_json(body)
            case _:
                return Trouble(Problem.model_validate_json(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise FrameError(f"bad {_NAMES[kind]} frame: {where}: {first['msg']}") from None


def _checked_pull(offset: int, length: int, wait_ms: int) -> Pull:
    if not 0 < length <= MAX_PULL or offset + length > MAX_ARENA:
        raise FrameError(f"a pull of {length} bytes at {offset}; allowed are 1 to {MAX_PULL} below {MAX_ARENA}")
    if wait_ms > MAX_WAIT_MS:
        raise FrameError(f"a pull that waits {wait_ms} ms; allowed are {MAX_WAIT_MS}")
    return Pull(offset, length, wait_ms)


def _checked_data(offset: int, watermark: int, length: int) -> Data:
    if length > MAX_PULL or watermark > MAX_ARENA or offset > MAX_ARENA:
        raise FrameError(f"data of {length} bytes at {offset}, watermark {watermark}: beyond the limits")
    if length and offset + length > watermark:
        raise FrameError(f"data [{offset}, {offset + length}) beyond the sender's own watermark {watermark}")
    return Data(offset, watermark, length)
