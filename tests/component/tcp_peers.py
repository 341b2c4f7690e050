"""What the tests of TCP between child and parent share: pulls that end, and the other end of a wire, scripted."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.identity import document_digest
from flashboot_agent.transport.base import Pull
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.wire import frames
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.frames import FrameParser, MetaReply, MetaRequest, encode
from tests.component.memory_catalog import MIB, MemoryArena, Target

ARENA = "arena-" + "1" * 32
DATA = bytes(range(256)) * (4 * MIB // 256) + b"tail"
QUICK = PullSettings(poll=0.1, silence=0.5)


Start = Callable[..., TcpServer]


def pull_from(address: str, settings: PullSettings = QUICK) -> Pull:
    return TcpTransport(settings).connect(Peer(node="parent-1", address=address), ARENA, "child-1", 10)


def fill(pull: Pull, target: Target | None = None, *, request_bytes: int = MIB) -> Target:
    """To the end, through chunks that differ."""
    target = Target(len(DATA)) if target is None else target
    with contextlib.closing(pull):
        sink = target.sink(pull, request_bytes=request_bytes)
        while pull.advance(sink, 1).state != "done":
            pass
    return target


class ScriptedParent(threading.Thread):
    """Accepts one connection, reads the request for metadata, then does what the test says."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._act = act
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        child, _ = self._listener.accept()
        with self._listener, child, contextlib.suppress(OSError):
            child.settimeout(20)
            assert isinstance(read_frame(child), MetaRequest)
            self._act(child)
            child.shutdown(socket.SHUT_WR)
            while child.recv(4096):
                pass


class StreamEnded(AssertionError):
    """The other end closed; fails a test that expects a frame."""


def read_frame(sock: socket.socket) -> frames.Frame:
    parser = FrameParser()
    while True:
        data = sock.recv(parser.wants)
        if not data:
            raise StreamEnded
        frame = parser.feed(data)
        if frame is not None:
            return frame


def good_meta(arena: MemoryArena, layout: bytes | None = None) -> bytes:
    """What a parent answers to a request for metadata; `layout`: another one than the arena's."""
    meta = arena.meta
    layout = meta.layout if layout is None else layout
    head = MetaReply(
        identity=meta.identity,
        nbytes=meta.nbytes,
        digest=meta.digest,
        digest_chunk_bytes=DIGEST_CHUNK_BYTES,
        digests_bytes=len(meta.chunk_digests),
        layout_bytes=len(layout),
        layout_digest=document_digest(layout),
    )
    return encode(head) + meta.chunk_digests + layout
