"""NIXL over UCX, the child's side: asks over the chunk protocol's connection, its parent writes into its memory.

For networks whose cards UCX can drive (InfiniBand, RoCE); over TCP it is slower than the transport `tcp`. Needs the
extra flashboot[nixl] on both ends.

UCX has neither encryption nor authentication: its worker takes orders from whoever reaches its port, and they may write
anywhere in the process. So it is off unless configured, and belongs on a network that only the nodes are on. What goes
over the connection (who the peers are, metadata, what is verified) has TLS as ever, and the bytes are compared with
digests that came over it.

What always holds: no byte is called verified before it was compared with its digest; a request is answered in time or
the parent is given up; when the pull is closed the agent is gone, so that a parent which still writes reaches nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Literal

from flashboot_agent._native import BYTES_IN, REFETCHED, MarksClosed, chunk_digest
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import BadRequest, ParentUnreachable, TornFrame
from flashboot_agent.transport.base import ArenaMeta, Progress, Pull, Sink, Transport
from flashboot_agent.transport.channel import Channel
from flashboot_agent.transport.nixl_agent import Agent, address_of, why_not_nixl
from flashboot_agent.transport.tcp import SLOWEST, PullSettings, TcpTransport, told
from flashboot_agent.wire import frames
from flashboot_agent.wire.arena import Peer


class NixlTransport(Transport):
    name = "nixl"

    def __init__(self, tcp: TcpTransport, settings: PullSettings | None = None) -> None:
        """`tcp` makes the connections."""
        self._tcp = tcp
        self._settings = settings or PullSettings()

    def probe(self, peer: Peer) -> str:
        why_not_nixl()
        return f"NIXL over UCX; requests over {self._tcp.probe(peer)}"

    def connect(self, peer: Peer, arena: str, child: str, deadline: float) -> Pull:
        why_not_nixl()
        request = frames.MetaRequest(arena=arena, child=child, carrier="nixl")
        try:
            channel, meta = self._tcp.introduce(peer, request, deadline)
        except BadRequest as error:  # it serves in other ways
            raise ParentUnreachable(str(error)) from None
        return NixlPull(channel, meta, self._settings)


class NixlPull(Pull):
    """See transport/base.py for what callers may expect. `advance` may take a long poll longer than asked."""

    def __init__(self, channel: Channel, meta: ArenaMeta, settings: PullSettings) -> None:
        self.meta = meta
        self._channel = channel
        self._settings = settings
        self._lane: _Lane | None = None
        self._closed = False
        self._lock = threading.Lock()
        """Held while `advance` runs."""

    def close(self) -> None:
        self._closed = True
        self._channel.close()
        if self._lock.acquire(blocking=False):  # else `advance` lets go when it ends
            self._let_go()
            self._lock.release()

    def advance(self, sink: Sink, seconds: float) -> Progress:
        with self._lock:
            try:
                if self._closed:
                    raise ParentUnreachable(f"{self._channel.peer}: the connection was closed on our side")
                sink.require(self.meta)
                if self._lane is None:
                    self._lane = _Lane(self._channel, self.meta.arena, sink, self._settings)
                return self._lane.advance(seconds)
            except BaseException:  # requests may be without answers: nothing that follows could be understood
                self._closed = True
                self._channel.close()
                raise
            finally:
                if self._closed:
                    self._let_go()

    def _let_go(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()


class _Lane:
    """One lane on its way; made once its memory is known."""

    def __init__(self, channel: Channel, arena: str, sink: Sink, settings: PullSettings) -> None:
        self._channel = channel
        self._sink = sink
        self._settings = settings
        self._what = f"pulling lane {sink.lane} of {arena} over NIXL"
        self._start, self._end = sink.marks.bounds(sink.lane)
        self._asked: deque[frames.Pull] = deque()
        self._ask = sink.marks.received(sink.lane)
        """The next request begins here."""
        self._dropping = False
        """Replies in flight count for nothing: one was empty, or a chunk was wrong."""
        self._parent_end = 0
        self._starved = False
        self._bytes_in = 0
        self._last_byte = time.monotonic()
        self._agent = Agent(f"{channel.peer}, {self._what}")
        try:
            self._give_memory()
        except BaseException:  # whatever it was: nobody else will close it
            self._agent.close()
            raise

    def close(self) -> None:
        self._agent.close()

    def advance(self, seconds: float) -> Progress:
        deadline = time.monotonic() + seconds
        self._bytes_in = 0
        marks, lane = self._sink.marks, self._sink.lane
        while self._verify():
            if marks.verified(lane) == self._end:
                return self._progress("done")
            if marks.closed:
                raise MarksClosed(f"our own arena was closed, {self._what}")
            if time.monotonic() >= deadline:
                return self._progress("going")
            self._send_requests()
            self._take_reply()
        return self._progress("differs")

    def _progress(self, state: Literal["done", "going", "differs"]) -> Progress:
        silent = time.monotonic() - self._last_byte
        offset = self._sink.marks.received(self._sink.lane)
        return Progress(state, offset, self._parent_end, self._starved, self._bytes_in, silent)

    def _give_memory(self) -> None:
        with self._sink.memory[self._start : self._end] as region:
            address = address_of(region)
        self._agent.register(address, self._end - self._start)
        metadata = self._agent.metadata
        target = frames.NixlTarget(
            agent=self._agent.name,
            start=self._start,
            nbytes=self._end - self._start,
            address=address,
            metadata_bytes=len(metadata),
        )
        silence = self._settings.silence
        self._channel.send(frames.encode(target), metadata, silence=silence, whole=silence, what=self._what)

    def _verify(self) -> bool:
        """Compare the chunks that are complete; False when one differs, `received` is then back at its start."""
        sink, marks = self._sink, self._sink.marks
        while (begin := marks.verified(sink.lane)) < self._end:
            end = min(begin + DIGEST_CHUNK_BYTES, self._end)
            if marks.received(sink.lane) < end:
                return True
            at = begin // DIGEST_CHUNK_BYTES * 8
            with sink.memory[begin:end] as chunk:
                same = chunk_digest(chunk) == int.from_bytes(sink.digests[at : at + 8], "little")
            if not same:
                marks.add(REFETCHED, 1)
                marks.set_received(sink.lane, begin)
                self._go_back()
                return False
            marks.set_verified(sink.lane, end)
        return True

    def _go_back(self) -> None:
        self._dropping = bool(self._asked)
        self._ask = self._sink.marks.received(self._sink.lane)

    def _send_requests(self) -> None:
        """Pieces end at multiples of their size from the lane's start, so that all children ask for the same ones."""
        settings, size = self._settings, min(self._sink.request_bytes, frames.MAX_PULL)
        while not self._dropping and len(self._asked) < settings.in_flight and self._ask < self._end:
            length = min(size - (self._ask - self._start) % size, self._end - self._ask)
            pull = frames.Pull(self._ask, length, int(settings.poll * 1000))
            silence = settings.silence
            self._channel.send(frames.encode(pull), silence=silence, whole=silence, what=self._what)
            self._asked.append(pull)
            self._ask += length

    def _take_reply(self) -> None:
        asked, settings, peer = self._asked[0], self._settings, self._channel.peer
        patience = settings.poll + settings.silence + asked.length / SLOWEST * self._sink.patience
        data = self._channel.recv_frame(patience, self._what)
        if data is None:
            raise ParentUnreachable(f"{peer}: ended the connection, {self._what}")
        if isinstance(data, frames.Trouble):
            raise told(self._channel, data.problem, self._what)
        if not isinstance(data, frames.Data) or data.offset != asked.offset or data.length not in (0, asked.length):
            raise TornFrame(f"{peer}: answered {data} to {asked}, {self._what}")
        self._asked.popleft()
        if data.length:
            self._last_byte = time.monotonic()
            self._bytes_in += data.length
            self._sink.marks.add(BYTES_IN, data.length)
        if not self._dropping:
            self._parent_end, self._starved = data.watermark, not data.length
            if data.length:
                self._sink.marks.set_received(self._sink.lane, data.offset + data.length)
            else:
                self._go_back()
        elif not self._asked:
            self._dropping = False
