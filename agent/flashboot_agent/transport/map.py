"""Same node: no connection at all, the parent's arena is read in place.

What always holds: only bytes that the source's marks call verified are copied, and each chunk is compared with its
digest on the way; an arena is never copied into itself.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from flashboot_agent._native import LaneCopier, MarksClosed
from flashboot_agent.core.errors import ParentUnreachable, UnknownArena
from flashboot_agent.transport.base import ArenaCatalog, Progress, Pull, Sink, SourceArena, Transport
from flashboot_agent.wire.arena import Peer

SLICE_SECONDS: Final = 0.1
"""How long `close` may have to wait for a copy in another thread."""


class MapTransport(Transport):
    name = "map"

    def __init__(self, node: str, catalog: ArenaCatalog, *, threads: int = 1, nice: int = 0) -> None:
        """`threads` copy each lane."""
        self._node = node
        self._catalog = catalog
        self._threads = threads
        self._nice = nice

    def probe(self, peer: Peer) -> str:
        if peer.node != self._node:
            raise ParentUnreachable(f"{peer.node} is another node than {self._node}")
        return f"{peer.node} is this node, its memory is read in place"

    def connect(self, peer: Peer, arena: str, child: str, deadline: float) -> Pull:
        return MapPull(self._catalog.open(arena, child), self._threads, self._nice)


class MapPull(Pull):
    """See transport/base.py for what callers may expect."""

    def __init__(self, source: SourceArena, threads: int, nice: int) -> None:
        self._source = source
        self._threads = threads
        self._nice = nice
        self._memory: memoryview | None = None
        self._copier: LaneCopier | None = None
        self._closed = self._ended = False
        self._lock = threading.Lock()
        """Held while bytes are copied, a moment at a time."""
        try:
            self.meta = source.meta
        except BaseException:  # whatever it was: nobody else will end the lease
            source.close()
            raise

    def close(self) -> None:
        self._closed = True  # before the lock, so that a copy in another thread lets go of it
        with self._lock:
            self._copier = None
            if self._memory is not None:
                self._memory.release()
                self._memory = None
            if not self._ended:
                self._ended = True
                self._source.close()

    def advance(self, sink: Sink, seconds: float) -> Progress:
        deadline = time.monotonic() + seconds
        bytes_in = 0
        while True:
            with self._lock:
                if self._closed:
                    raise ParentUnreachable(f"the copy of {self.meta.arena} on this node was closed on our side")
                if self._copier is None:
                    self._copier = self._begin(sink)
                try:
                    step = self._copier.advance(min(SLICE_SECONDS, max(0.0, deadline - time.monotonic())))
                except MarksClosed:
                    self._raise_if_dropped()
                    raise  # not the source: our own arena goes
            bytes_in += step.bytes_in
            if step.state == "overdue" or step.state == "trouble":  # noqa: PLR1714 (narrows the type)
                raise ValueError(f"a copy in place came to {step.state}, which only a connection can")
            if step.state != "going" or time.monotonic() >= deadline:
                return Progress(step.state, step.offset, step.parent_end, step.starved, bytes_in, step.silent_seconds)

    def _begin(self, sink: Sink) -> LaneCopier:
        sink.require(self.meta)
        if sink.marks is self._source.marks:
            raise ParentUnreachable(f"{self.meta.arena} on this node is the arena that is to be filled")
        self._memory = self._source.memory
        return LaneCopier(
            self._source.marks,
            self._memory,
            sink.marks,
            sink.lane,
            sink.memory,
            sink.digests,
            threads=self._threads,
            nice=self._nice,
        )

    def _raise_if_dropped(self) -> None:
        try:
            self._source.marks.wait_valid(0, 0, 0)
        except MarksClosed:
            raise UnknownArena(f"{self.meta.arena} was dropped on this node") from None
