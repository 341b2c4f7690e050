"""The TCP transport against damage on the way and peers that mean harm or have died."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from flashboot_agent.core.digest import DIGEST_CHUNK_BYTES, chunk_digest
from flashboot_agent.core.errors import DeadlineExceeded, FlashBootError, NotReady, ParentUnreachable, TornFrame
from flashboot_agent.transport.base import Pull
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
from flashboot_agent.transport.tcp_server import ServerSettings, TcpServer
from flashboot_agent.wire import frames
from flashboot_agent.wire.control import Peer, Problem
from flashboot_agent.wire.frames import Data, FrameParser, MetaReply, MetaRequest, Trouble, encode
from tests.component.memory_catalog import MemoryArena, MemoryCatalog, until
from tests.component.proxy import ChunkProxy

MIB = 1 << 20
ARENA = "arena-" + "1" * 32
DATA = bytes(range(256)) * (4 * MIB // 256) + b"tail"
QUICK = PullSettings(poll=0.1, silence=0.5, piece=2.0)


@pytest.fixture
def arena() -> MemoryArena:
    return MemoryArena(ARENA, DATA)


Start = Callable[..., TcpServer]


@pytest.fixture
def start(arena: MemoryArena) -> Iterator[Start]:
    servers: list[TcpServer] = []

    def start(**settings: float) -> TcpServer:
        chosen = ServerSettings(**{"look": 0.05, **settings})  # type: ignore[arg-type]
        servers.append(TcpServer(MemoryCatalog(arena), "127.0.0.1", 0, settings=chosen))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
    until(arena.changed, lambda: not arena.children)


@pytest.fixture
def proxy(start: Start) -> Iterator[ChunkProxy]:
    made = ChunkProxy(start().address)
    yield made
    made.close()


def pull_from(address: str, settings: PullSettings = QUICK) -> Pull:
    return TcpTransport(settings).connect(Peer(node="parent-1", address=address), ARENA, "child-1", 10)


def fill(pull: Pull, start: int = 0, into: bytearray | None = None) -> bytearray:
    into = bytearray(len(DATA)) if into is None else into
    with contextlib.closing(pull):
        for _ in pull.stream(start, memoryview(into)):
            pass
    return into


# Damage on the way


def test_a_flipped_byte_is_seen_by_its_digest_and_fetched_again(proxy: ChunkProxy, arena: MemoryArena) -> None:
    proxy.inject("flip", 2 * MIB + 5)
    pull = pull_from(proxy.address)
    into = bytearray(len(DATA))
    with contextlib.closing(pull):
        bad = []
        for piece in pull.stream(0, memoryview(into)):
            expected = struct.unpack_from("<Q", pull.meta.chunk_digests, piece.offset // DIGEST_CHUNK_BYTES * 8)[0]
            if chunk_digest(memoryview(into)[piece.offset : piece.offset + piece.nbytes]) != expected:
                bad.append(piece.offset)
        assert bad == [2 * MIB]
        with contextlib.closing(pull.stream(bad[0], memoryview(into))) as again:
            next(again)
    assert into == DATA
    assert proxy.happened == [("flip", 2 * MIB + 5)]


@pytest.mark.parametrize("fault", ["cut", "cut_in_header"])
def test_a_parent_that_dies_in_mid_frame_is_unreachable(proxy: ChunkProxy, fault: str) -> None:
    proxy.inject(fault, 2 * MIB + 7)  # type: ignore[arg-type]
    into = bytearray(len(DATA))
    # It may be seen while the next request is sent, so the range in the message is that one or the torn one.
    with pytest.raises(ParentUnreachable, match=r"parent-1 .*bytes \[(2097152, 3145728|3145728, 4194304)\)"):
        fill(pull_from(proxy.address), into=into)
    assert into[: 2 * MIB] == DATA[: 2 * MIB]
    assert fill(pull_from(proxy.address), 2 * MIB, into) == DATA, "another connection goes on from there"


def test_a_parent_that_goes_silent_is_given_up_in_time(proxy: ChunkProxy) -> None:
    proxy.inject("stall", 3 * MIB + 11)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"parent-1 .*bytes \[3145728, 4194304\)"):
        fill(pull_from(proxy.address))
    assert time.monotonic() - began < 30, "the deadline is 0.5 s; a whole machine may be slow"


def test_two_requests_are_in_flight(proxy: ChunkProxy) -> None:
    fill(pull_from(proxy.address))
    assert proxy.most_unanswered == 2
    fill(pull_from(proxy.address, PullSettings(chunk_bytes=64 << 10, in_flight=5)))
    assert 2 < proxy.most_unanswered <= 5


def test_a_killed_parent_process_ends_the_stream(proxy: ChunkProxy) -> None:
    """The proxy as a process of its own stands for the parent: kill -9 while it holds a frame half sent."""
    command = [sys.executable, "tests/component/proxy.py", "--target", proxy.address, "--stall", str(MIB + 3)]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split('"')[3]
            failures: list[FlashBootError] = []

            def run() -> None:
                try:
                    fill(pull_from(address, PullSettings(silence=60)))
                except FlashBootError as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            assert "stall" in process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            thread.join(30)
            assert [type(failure) for failure in failures] == [ParentUnreachable]
        finally:
            process.kill()


# A parent that means harm


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


def read_frame(sock: socket.socket) -> frames.Frame:
    parser = FrameParser()
    while True:
        data = sock.recv(parser.wants)
        assert data, "the stream ended"
        frame = parser.feed(data)
        if frame is not None:
            return frame


def good_meta(arena: MemoryArena) -> bytes:
    meta = arena.meta
    head = MetaReply(
        identity=meta.identity,
        nbytes=meta.nbytes,
        digest=meta.digest,
        digest_chunk_bytes=DIGEST_CHUNK_BYTES,
        digests_bytes=len(meta.chunk_digests),
        layout_bytes=len(meta.layout),
    )
    return encode(head) + meta.chunk_digests + meta.layout


HEADER_OF_4_GIB = struct.pack("<4sBBHI", b"FBCH", 1, 2, 0, 2**32 - 1)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", TornFrame, "no chunk protocol"),
        (HEADER_OF_4_GIB, TornFrame, "4294967295 bytes"),
        (encode(Data(0, 0, 0)), TornFrame, "answered Data"),
        (b"FBCH", ParentUnreachable, "middle of a frame"),
        (b"", ParentUnreachable, "ended the connection"),
        (encode(Trouble(Problem(reason="NotReady", message="later"))), NotReady, "parent-1 .*later"),
    ],
)
def test_a_bad_answer_to_the_request_for_metadata(answer: bytes, error: type[Exception], message: str) -> None:
    parent = ScriptedParent(lambda child: child.sendall(answer))
    with pytest.raises(error, match=message):
        pull_from(parent.address)
    parent.join(20)


def test_a_digest_table_with_another_root_is_refused(arena: MemoryArena) -> None:
    damaged = bytearray(good_meta(arena))
    damaged[-len(arena.meta.layout) - 1] ^= 1
    parent = ScriptedParent(lambda child: child.sendall(damaged))
    with pytest.raises(TornFrame, match="root"):
        pull_from(parent.address)
    parent.join(20)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"\0" * 12, TornFrame, "no chunk protocol"),
        (encode(Data(MIB, 4 * MIB, MIB)), TornFrame, "answered Data"),  # an offset that was not asked for
        (encode(Data(0, 4 * MIB, MIB - 1)), TornFrame, "answered Data"),  # a length that was not asked for
        (encode(Data(0, 5 * MIB, MIB)), TornFrame, "answered Data"),  # a watermark beyond the arena
        (encode(Data(0, 4 * MIB, 0)), DeadlineExceeded, "sends none"),  # has it and does not give it
    ],
)
def test_a_bad_answer_to_a_pull(arena: MemoryArena, answer: bytes, error: type[Exception], message: str) -> None:
    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        read_frame(child)
        child.sendall(answer)

    parent = ScriptedParent(act)
    into = bytearray(len(DATA))
    with pytest.raises(error, match=message):
        fill(pull_from(parent.address), into=into)
    assert not any(into), "nothing was written"
    parent.join(20)


def test_a_parent_that_trickles_does_not_push_the_deadline(arena: MemoryArena) -> None:
    """One byte each now and then keeps the silence short, but the piece must be complete in `piece` seconds."""
    ended = threading.Event()

    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        read_frame(child)
        child.sendall(encode(Data(0, 4 * MIB, MIB)))
        while not ended.wait(0.05):
            child.sendall(b"x")

    parent = ScriptedParent(act)
    with pytest.raises(DeadlineExceeded, match="parent-1"):
        fill(pull_from(parent.address, PullSettings(poll=0.1, silence=5, piece=0.5)))
    ended.set()
    parent.join(20)


# A child that means harm


def raw_child(server: TcpServer) -> socket.socket:
    host, port = server.address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def introduce(child: socket.socket) -> None:
    child.sendall(encode(MetaRequest(arena=ARENA, child="child-1")))
    meta = read_frame(child)
    assert isinstance(meta, MetaReply)
    left = meta.digests_bytes + meta.layout_bytes
    while left:
        left -= len(child.recv(left))


@pytest.mark.parametrize(
    ("sent", "reason", "message"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "TornFrame", "no chunk protocol"),
        (struct.pack("<4sBBHI", b"FBCH", 1, 1, 0, 2**31), "TornFrame", "2147483648 bytes"),
        (struct.pack("<4sBBHI", b"FBCH", 9, 1, 0, 2), "TornFrame", "version 9"),
        (encode(frames.Pull(0, 1, 0)), "BadRequest", "first frame must be MetaRequest"),
        (struct.pack("<4sBBHI", b"FBCH", 1, 1, 0, 2) + b"{}", "TornFrame", "arena"),
    ],
)
def test_a_hostile_first_frame(start: Start, sent: bytes, reason: str, message: str) -> None:
    server = start()
    with raw_child(server) as child:
        child.sendall(sent)
        trouble = read_frame(child)
        assert isinstance(trouble, Trouble)
        assert trouble.problem.reason == reason
        assert message in trouble.problem.message
        assert child.recv(1) == b"", "and it hangs up"
    assert fill(pull_from(server.address)) == DATA, "others are served as before"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (encode(frames.Pull(len(DATA) - 1, 2, 0)), "BadRequest"),
        (encode(MetaRequest(arena=ARENA, child="child-1")), "BadRequest"),
        (encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 0, frames.MAX_PULL + 1, 0), "TornFrame"),
        (encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 2**64 - 1, 1, 0), "TornFrame"),
    ],
)
def test_a_hostile_request(start: Start, sent: bytes, reason: str) -> None:
    with raw_child(start()) as child:
        introduce(child)
        child.sendall(sent + encode(frames.Pull(0, 1, 0)) * 3)
        trouble = read_frame(child)
        assert isinstance(trouble, Trouble)
        assert trouble.problem.reason == reason
        assert child.recv(1) == b""


def gone(server: TcpServer, arena: MemoryArena) -> bool:
    """No connection and no lease is left."""
    deadline = time.monotonic() + 20
    changed = threading.Event()
    while time.monotonic() < deadline and (server.connections or arena.children):
        changed.wait(0.01)
    return not server.connections and not arena.children


def test_a_child_that_says_nothing_is_given_up(start: Start, arena: MemoryArena) -> None:
    server = start(hello=0.2, idle=0.2)
    with raw_child(server) as mute, raw_child(server) as half, raw_child(server) as idle:
        half.sendall(b"FBCH")
        introduce(idle)
        for child in (mute, half, idle):
            assert child.recv(1) == b""
        assert gone(server, arena)


def test_a_child_that_trickles_a_request_is_given_up(start: Start, arena: MemoryArena) -> None:
    server = start(hello=0.3)
    with raw_child(server) as child, contextlib.suppress(ConnectionError):
        wait = threading.Event()
        for byte in encode(MetaRequest(arena=ARENA, child="child-1"))[:-1] * 5:
            child.sendall(bytes([byte]))
            wait.wait(0.02)
    assert gone(server, arena)


def test_a_child_that_takes_nothing_is_given_up(start: Start, arena: MemoryArena) -> None:
    """It asks for far more than the socket buffers hold, and reads none of it."""
    server = start(silence=0.3)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 4 * MIB, 0)) * 16)
        assert gone(server, arena)


def test_a_child_that_dies_in_a_long_poll_frees_its_lease(start: Start, arena: MemoryArena) -> None:
    server = start()
    arena.rise(0)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 1, 60_000)) * 2)
        until(arena.changed, lambda: arena.waiting > 0)
    assert gone(server, arena)


def test_one_child_too_many_is_told_so(start: Start) -> None:
    server = start(connections=1)
    with raw_child(server) as child:
        introduce(child)
        with pytest.raises(NotReady, match="already serves 1 children"):
            pull_from(server.address)
    # the slot is free again as soon as the server has seen the end of the first
    deadline = time.monotonic() + 20
    while True:
        try:
            assert fill(pull_from(server.address)) == DATA
            return
        except NotReady:
            assert time.monotonic() < deadline


def test_a_server_closes_while_children_wait(start: Start, arena: MemoryArena) -> None:
    server = start()
    arena.rise(0)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 1, 60_000)))
        until(arena.changed, lambda: arena.waiting > 0)
        server.close()
        assert child.recv(1) == b""
    assert gone(server, arena)


@pytest.mark.parametrize(
    "bad",
    [{"chunk_bytes": 0}, {"chunk_bytes": 5 * MIB}, {"in_flight": 1}, {"poll": 61}, {"silence": 0}, {"piece": -1}],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        PullSettings(**bad)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:70000"])
def test_no_connection_names_the_node(address: str) -> None:
    with pytest.raises(ParentUnreachable, match="parent parent-1"):
        pull_from(address)
