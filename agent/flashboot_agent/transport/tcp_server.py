"""Plain TCP, the parent's side: serves any arena of a catalog, one thread per child.

What always holds: a child costs one thread, one lease and one frame of memory, whatever it sends or does not send; no
child keeps either longer than the deadlines of ServerSettings allow; bytes above the watermark never leave.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
import time
from dataclasses import dataclass

from flashboot_agent.core.digest import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import BadRequest, DeadlineExceeded, FlashBootError, NotReady, ParentUnreachable
from flashboot_agent.transport import address
from flashboot_agent.transport.base import ArenaCatalog, Server, SourceArena
from flashboot_agent.transport.channel import Channel
from flashboot_agent.wire import frames

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server grants its children; times in seconds."""

    connections: int = 64
    """Children at a time. One above gets NotReady, and tries another parent."""
    hello: float = 10.0
    """From the connection to the request for metadata, and from the first to the last byte of any request."""
    idle: float = 60.0
    """Between two requests."""
    silence: float = 10.0
    """A child that takes no byte of a reply for so long is given up."""
    reply: float = 60.0
    """A child must have taken a whole reply (up to 4 MiB; metadata up to 192 MiB) after so long."""
    look: float = 1.0
    """How often a long poll looks whether the child is still there and the server still open."""


class TcpServer(Server):
    """Listens as soon as it is made.

    Args:
        host, port: where to listen; port 0 takes a free one.
        advertise: the IP address that peers shall use, where `host` is a wildcard.
    """

    def __init__(
        self,
        catalog: ArenaCatalog,
        host: str,
        port: int,
        *,
        advertise: str | None = None,
        settings: ServerSettings | None = None,
    ) -> None:
        self._catalog = catalog
        self._settings = settings or ServerSettings()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=128)
        self.address = address.join(advertise or host, self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._children: dict[Channel, threading.Thread] = {}
        self._closing = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name="chunks-accept", daemon=True)
        self._acceptor.start()

    @property
    def connections(self) -> int:
        """Children that are connected now."""
        with self._lock:
            return len(self._children)

    def close(self) -> None:
        """Stop listening and end all connections; waits a few seconds for their threads."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() alone would not
        deadline = time.monotonic() + 5
        self._acceptor.join(5)
        self._listener.close()
        with self._lock:
            children = dict(self._children)
        for channel in children:
            channel.close()
        for channel, thread in children.items():
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.error("the thread that serves %s did not end within 5 s", channel.peer)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, peer = self._listener.accept()
                channel = Channel(sock, f"child at {address.join(peer[0], peer[1])}")
            except OSError as error:
                if self._closing.is_set():
                    return
                log.warning("could not accept a connection at %s: %s", self.address, error)
                if error.errno != errno.ECONNABORTED:
                    self._closing.wait(0.1)  # out of descriptors or memory: do not spin, the backlog keeps the child
                continue
            thread = threading.Thread(target=self._serve, args=(channel,), name=f"chunks-{peer[0]}", daemon=True)
            with self._lock:
                serve = len(self._children) < self._settings.connections
                if serve:
                    self._children[channel] = thread
            if not serve:
                self._turn_away(channel, f"already serves {self._settings.connections} children")
                continue
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                with self._lock:
                    del self._children[channel]
                self._turn_away(channel, f"has no thread for one more child ({error})")

    def _turn_away(self, channel: Channel, why: str) -> None:
        """In the accepting thread, so it must not wait: the frame fits a fresh connection's send buffer."""
        error = NotReady(f"{self.address} {why}; try another parent, or later")
        with contextlib.suppress(ParentUnreachable, DeadlineExceeded):
            channel.send(frames.encode(frames.Trouble(error.problem())), silence=0.1, whole=0.1, what="turning it away")
            channel.finish(0.1)
        channel.close()

    def _serve(self, channel: Channel) -> None:
        try:
            self._converse(channel)
        except (ParentUnreachable, DeadlineExceeded) as error:
            log.info("gave up a child: %s", error)
        except FlashBootError as error:
            log.info("refused a child: %s: %s", channel.peer, error)
            with contextlib.suppress(ParentUnreachable, DeadlineExceeded):
                self._send(channel, frames.Trouble(error.problem()))
                channel.finish(2.0)
        finally:
            channel.close()
            with self._lock:
                del self._children[channel]

    def _converse(self, channel: Channel) -> None:
        hello = self._settings.hello
        request = channel.recv_frame(first=hello, whole=hello, what="waiting for its request for metadata")
        if request is None:
            return  # a probe
        if not isinstance(request, frames.MetaRequest):
            raise BadRequest(f"the first frame must be MetaRequest, not {type(request).__name__}")
        channel.peer = f"{channel.peer} on node {request.child}"
        source = self._catalog.open(request.arena, request.child)
        try:
            meta = source.meta
            reply = frames.MetaReply(
                identity=meta.identity,
                nbytes=meta.nbytes,
                digest=meta.digest,
                digest_chunk_bytes=DIGEST_CHUNK_BYTES,
                digests_bytes=len(meta.chunk_digests),
                layout_bytes=len(meta.layout),
            )
            self._send(channel, reply, meta.chunk_digests)
            if meta.layout:
                self._send_raw(channel, b"", meta.layout)
            while True:
                pull = channel.recv_frame(first=self._settings.idle, whole=hello, what="waiting for its next request")
                if pull is None:
                    return
                if not isinstance(pull, frames.Pull):
                    raise BadRequest(f"expected Pull, got {type(pull).__name__}")
                self._answer(channel, source, pull)
        finally:
            source.close()

    def _answer(self, channel: Channel, source: SourceArena, pull: frames.Pull) -> None:
        end = pull.offset + pull.length
        if end > source.meta.nbytes:
            raise BadRequest(f"{source.meta.arena} has {source.meta.nbytes} bytes; asked for [{pull.offset}, {end})")
        deadline = time.monotonic() + pull.wait_ms / 1000
        watermark = source.wait_watermark(end - 1, 0)
        while watermark < end:
            left = deadline - time.monotonic()
            if left <= 0:
                self._send(channel, frames.Data(pull.offset, watermark, 0))
                return
            if self._closing.is_set() or channel.peer_is_gone():
                raise ParentUnreachable(f"{channel.peer}: left while it waited for bytes of {source.meta.arena}")
            watermark = source.wait_watermark(end - 1, min(left, self._settings.look))
        with source.view(pull.offset, pull.length) as view:
            self._send(channel, frames.Data(pull.offset, watermark, pull.length), view)
        source.sent(pull.length)

    def _send(self, channel: Channel, frame: frames.Frame, tail: memoryview | bytes = b"") -> None:
        self._send_raw(channel, frames.encode(frame), tail)

    def _send_raw(self, channel: Channel, head: bytes, tail: memoryview | bytes) -> None:
        channel.send(head, tail, silence=self._settings.silence, whole=self._settings.reply, what="sending a reply")
