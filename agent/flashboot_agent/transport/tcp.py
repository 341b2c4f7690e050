"""Plain TCP, the child's side: one connection to one parent, several ranged requests in flight.

What always holds: bytes land at their place in the child's memory and nowhere else; pieces are reported in order; a
parent that sends nothing while bytes are due is given up after a bounded time, and a parent that has nothing itself is
not. Two requests in flight keep the link busy while a reply is on its way.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from flashboot_agent.core.digest import DIGEST_CHUNK_BYTES, root_digest
from flashboot_agent.core.errors import DeadlineExceeded, ParentUnreachable, TornFrame, from_problem
from flashboot_agent.transport import address
from flashboot_agent.transport.base import ArenaMeta, Piece, Pull, Transport
from flashboot_agent.transport.channel import Channel
from flashboot_agent.wire import frames
from flashboot_agent.wire.control import Peer

PROBE_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class PullSettings:
    """How a child pulls; times in seconds."""

    chunk_bytes: int = 1 << 20
    """Bytes of one request: a digest chunk, so that a piece can be verified and served again as soon as it is there."""
    in_flight: int = 2
    """Requests on their way; one would leave the link idle for a round trip per chunk."""
    poll: float = 1.0
    """How long the parent holds a request for bytes that it does not have yet."""
    silence: float = 5.0
    """A parent that owes bytes or an answer and sends nothing for so long is given up."""
    piece: float = 30.0
    """A piece must be complete so long after its first byte."""

    def __post_init__(self) -> None:
        if not 0 < self.chunk_bytes <= frames.MAX_PULL:
            raise ValueError(f"chunk_bytes is {self.chunk_bytes}; allowed are 1 to {frames.MAX_PULL}")
        if not 2 <= self.in_flight <= 64:
            raise ValueError(f"in_flight is {self.in_flight}; allowed are 2 to 64")
        if not 0 <= self.poll <= frames.MAX_WAIT_MS / 1000:
            raise ValueError(f"poll is {self.poll}; allowed are 0 to {frames.MAX_WAIT_MS // 1000} seconds")
        if self.silence <= 0 or self.piece <= 0:
            raise ValueError("silence and piece must be above 0 seconds")


class TcpTransport(Transport):
    name = "tcp"

    def __init__(self, settings: PullSettings | None = None) -> None:
        self._settings = settings or PullSettings()

    def probe(self, peer: Peer) -> str:
        _dial(peer, PROBE_SECONDS).close()
        return f"{peer.address} accepts TCP connections"

    def connect(self, peer: Peer, arena: str, child: str, deadline: float) -> Pull:
        end = time.monotonic() + deadline
        channel = _dial(peer, deadline)
        try:
            meta = _read_meta(channel, arena, child, end)
        except BaseException:
            channel.close()
            raise
        return TcpPull(channel, meta, self._settings)


def _dial(peer: Peer, timeout: float) -> Channel:
    label = f"parent {peer.node} ({peer.address})"
    try:
        sock = socket.create_connection(address.split(peer.address), timeout=timeout)
    except TimeoutError:
        raise ParentUnreachable(f"{label}: no connection within {timeout:.1f} s") from None
    except (OSError, ValueError) as error:
        raise ParentUnreachable(f"{label}: no connection: {error}") from error
    return Channel(sock, label)


def _read_meta(channel: Channel, arena: str, child: str, end: float) -> ArenaMeta:
    def left() -> float:
        seconds = end - time.monotonic()
        if seconds <= 0:
            raise DeadlineExceeded(f"{channel.peer}: the metadata of {arena} did not come in time")
        return seconds

    what = f"asking for the metadata of {arena}"
    request = frames.encode(frames.MetaRequest(arena=arena, child=child))
    channel.send(request, silence=left(), whole=left(), what=what)
    reply = _reply(channel, first=left(), whole=left(), what=what)
    if not isinstance(reply, frames.MetaReply):
        raise TornFrame(f"{channel.peer}: answered {type(reply).__name__} to a request for metadata")
    if reply.digest_chunk_bytes != DIGEST_CHUNK_BYTES:
        raise TornFrame(f"{channel.peer}: digests {reply.digest_chunk_bytes} bytes at a time, we {DIGEST_CHUNK_BYTES}")
    digests, layout = bytearray(reply.digests_bytes), bytearray(reply.layout_bytes)
    for part in (digests, layout):
        channel.recv_into(memoryview(part), silence=left(), whole=left(), what=what)
    table = bytes(digests)
    if root_digest(table) != reply.digest:
        raise TornFrame(
            f"{channel.peer}: the digest table of {arena} has root {root_digest(table)}, not {reply.digest}"
        )
    return ArenaMeta(
        arena=arena,
        identity=reply.identity,
        nbytes=reply.nbytes,
        layout=bytes(layout),
        chunk_digests=table,
        digest=reply.digest,
    )


def _reply(channel: Channel, *, first: float, whole: float, what: str) -> frames.Frame:
    """The next frame; the parent's troubles come out as the exceptions that they stand for."""
    frame = channel.recv_frame(first=first, whole=whole, what=what)
    if frame is None:
        raise ParentUnreachable(f"{channel.peer}: ended the connection, {what}")
    if isinstance(frame, frames.Trouble):
        said = f"{channel.peer}, {what}: {frame.problem.message}"[:4096]
        raise from_problem(frame.problem.model_copy(update={"message": said}))
    return frame


class TcpPull(Pull):
    """See transport/base.py for what callers may expect."""

    def __init__(self, channel: Channel, meta: ArenaMeta, settings: PullSettings) -> None:
        self.meta = meta
        self._channel = channel
        self._settings = settings
        self._asked: deque[frames.Pull] = deque()
        """Requests without a reply, oldest first; the parent answers in this order."""

    def close(self) -> None:
        self._channel.close()

    def stream(self, start: int, into: memoryview) -> Generator[Piece, None, None]:
        size = self.meta.nbytes
        if len(into) != size or not 0 <= start <= size:
            raise ValueError(f"{self.meta.arena} has {size} bytes; got {len(into)} to fill from {start}")
        try:
            yield from self._stream(start, into)
        except GeneratorExit:
            raise  # between two pieces: the connection is whole, the next stream skips what is still in flight
        except BaseException:
            self.close()  # somewhere inside a frame: nothing that follows could be understood
            raise

    def _stream(self, start: int, into: memoryview) -> Generator[Piece, None, None]:
        self._skip_abandoned()
        size, chunk = self.meta.nbytes, self._settings.chunk_bytes
        window = self._settings.in_flight * chunk
        done = ask = start
        landed: dict[int, int] = {}  # pieces behind a request that came back empty; at most in_flight of them
        while done < size:
            # Never further ahead than the window, counted from the first missing byte: that bounds `landed`.
            while len(self._asked) < self._settings.in_flight and ask < min(size, done + window):
                # Up to a multiple of the chunk, where parents' watermarks stand: bytes across one would come later.
                length = min(chunk - ask % chunk, size - ask)
                self._ask(ask, length)
                ask += length
            asked, data = self._next_data()
            if not data.length:
                self._ask(asked.offset, asked.length)
                yield Piece(done, 0, data.watermark)
                continue
            with into[data.offset : data.offset + data.length] as place:
                self._channel.recv_into(
                    place, silence=self._settings.silence, whole=self._settings.piece, what=self._what(asked)
                )
            landed[data.offset] = data.length
            while done in landed:
                length = landed.pop(done)
                yield Piece(done, length, data.watermark)
                done += length

    def _ask(self, offset: int, length: int) -> None:
        pull = frames.Pull(offset, length, int(self._settings.poll * 1000))
        seconds = self._settings.silence
        self._channel.send(frames.encode(pull), silence=seconds, whole=seconds, what=self._what(pull))
        self._asked.append(pull)

    def _next_data(self) -> tuple[frames.Pull, frames.Data]:
        """The reply to the oldest request, its tail still to be read."""
        asked, settings = self._asked[0], self._settings
        what = self._what(asked)
        data = _reply(self._channel, first=settings.poll + settings.silence, whole=settings.silence, what=what)
        if not isinstance(data, frames.Data):
            raise TornFrame(f"{self._channel.peer}: answered {type(data).__name__}, {what}")
        if data.offset != asked.offset or data.length not in (0, asked.length) or data.watermark > self.meta.nbytes:
            raise TornFrame(f"{self._channel.peer}: answered {data}, {what}")
        if not data.length and data.watermark >= asked.offset + asked.length:
            raise DeadlineExceeded(f"{self._channel.peer}: has {data.watermark} bytes and sends none, {what}")
        self._asked.popleft()
        return asked, data

    def _skip_abandoned(self) -> None:
        while self._asked:
            asked, data = self._next_data()
            seconds = self._settings
            self._channel.skip(data.length, silence=seconds.silence, whole=seconds.piece, what=self._what(asked))

    def _what(self, asked: frames.Pull) -> str:
        return f"pulling bytes [{asked.offset}, {asked.offset + asked.length}) of {self.meta.arena}"
