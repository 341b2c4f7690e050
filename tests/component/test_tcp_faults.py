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

from flashboot_agent._native import BYTES_IN, REFETCHED, SERVE_LIMIT
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.digest import document_digest
from flashboot_agent.core.errors import (
    DeadlineExceeded,
    FlashBootError,
    NotReady,
    ParentUnreachable,
    TornFrame,
    UnknownArena,
)
from flashboot_agent.transport.base import Progress, Pull
from flashboot_agent.transport.conversation import ServerSettings
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.wire import frames
from flashboot_agent.wire.control import Peer, Problem
from flashboot_agent.wire.frames import Data, FrameParser, MetaReply, MetaRequest, Trouble, encode
from tests.component.agents import eventually
from tests.component.memory_catalog import MIB, MemoryArena, MemoryCatalog, Target, until
from tests.component.proxy import ChunkProxy

ARENA = "arena-" + "1" * 32
DATA = bytes(range(256)) * (4 * MIB // 256) + b"tail"
QUICK = PullSettings(poll=0.1, silence=0.5)


@pytest.fixture
def arena() -> MemoryArena:
    return MemoryArena(ARENA, DATA)


@pytest.fixture
def growing() -> MemoryArena:
    """Without a byte yet."""
    return MemoryArena(ARENA, DATA, watermark=0)


Start = Callable[..., TcpServer]


@pytest.fixture
def start(arena: MemoryArena) -> Iterator[Start]:
    servers: list[TcpServer] = []

    def start(**settings: float) -> TcpServer:
        chosen = ServerSettings(**settings)  # type: ignore[arg-type]
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


def fill(pull: Pull, target: Target | None = None, *, request_bytes: int = MIB) -> Target:
    """To the end, through chunks that differ."""
    target = Target(len(DATA)) if target is None else target
    with contextlib.closing(pull):
        sink = target.sink(pull, request_bytes=request_bytes)
        while pull.advance(sink, 1).state != "done":
            pass
    return target


# Damage on the way


def test_a_flipped_byte_is_seen_by_its_digest_and_fetched_again(proxy: ChunkProxy) -> None:
    proxy.inject("flip", 2 * MIB + 5)
    pull, target = pull_from(proxy.address), Target(len(DATA))
    steps: list[Progress] = []
    sink = target.sink(pull)
    while not steps or steps[-1].state == "going":
        steps.append(pull.advance(sink, 1))
    assert (steps[-1].state, steps[-1].offset) == ("differs", 2 * MIB)
    fill(pull, target)
    assert target.data == DATA
    assert target.marks.counter(REFETCHED) == 1
    assert proxy.happened == [("flip", 2 * MIB + 5)]


@pytest.mark.parametrize("fault", ["cut", "cut_in_header"])
def test_a_parent_that_dies_in_mid_frame_is_unreachable_and_the_next_goes_on_from_there(
    proxy: ChunkProxy, fault: str
) -> None:
    proxy.inject(fault, 2 * MIB + 7)  # type: ignore[arg-type]
    target = Target(len(DATA))
    with pytest.raises(ParentUnreachable, match=r"parent-1 .*pulling lane 0"):
        fill(pull_from(proxy.address), target)
    assert target.data[: 2 * MIB] == DATA[: 2 * MIB]
    assert 2 * MIB <= target.marks.received(0) <= 2 * MIB + 7
    assert fill(pull_from(proxy.address), target).data == DATA
    assert target.marks.counter(BYTES_IN) == len(DATA), "nothing twice, not even inside of a chunk"


def test_a_parent_that_goes_silent_is_given_up_in_time(proxy: ChunkProxy) -> None:
    proxy.inject("stall", 3 * MIB + 11)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"parent-1 .*lane 0"):
        fill(pull_from(proxy.address))
    assert time.monotonic() - began < 30, "the deadline is 0.5 s; a whole machine may be slow"


@pytest.mark.parametrize(
    ("settings", "request_bytes", "in_flight"), [(QUICK, MIB, 2), (PullSettings(in_flight=5), 64 << 10, 5)]
)
def test_two_requests_are_in_flight_or_as_many_as_are_set(
    growing: MemoryArena, settings: PullSettings, request_bytes: int, in_flight: int
) -> None:
    """While the parent has no byte, they pile up; then they go on to the end, and there are never more."""
    server = TcpServer(MemoryCatalog(growing), "127.0.0.1", 0)
    proxy = ChunkProxy(server.address)
    pull, target = pull_from(proxy.address, settings), Target(len(DATA))
    with contextlib.closing(server), contextlib.closing(proxy), contextlib.closing(pull):
        sink = target.sink(pull, request_bytes=request_bytes)
        what = f"{in_flight} requests without an answer"
        eventually(lambda: pull.advance(sink, 0.05) and proxy.most_unanswered >= in_flight, what)
        growing.marks.fill()
        while pull.advance(sink, 1).state != "done":
            pass
    assert proxy.most_unanswered == in_flight


STALLING = """
import sys
from tests.component.proxy import ChunkProxy
proxy = ChunkProxy(sys.argv[1])
proxy.inject("stall", int(sys.argv[2]))
print(proxy.address, flush=True)
proxy.wait_for("stall", 60)
print("stalled", flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_process_ends_the_stream(proxy: ChunkProxy) -> None:
    """The proxy as a process of its own stands for the parent: kill -9 while it holds a frame half sent."""
    command = [sys.executable, "-c", STALLING, proxy.address, str(MIB + 3)]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            failures: list[FlashBootError] = []

            def run() -> None:
                try:
                    fill(pull_from(address, PullSettings(silence=60)))
                except FlashBootError as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            assert process.stdout.readline() == "stalled\n"
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


def good_meta(arena: MemoryArena) -> bytes:
    meta = arena.meta
    head = MetaReply(
        identity=meta.identity,
        nbytes=meta.nbytes,
        digest=meta.digest,
        digest_chunk_bytes=DIGEST_CHUNK_BYTES,
        digests_bytes=len(meta.chunk_digests),
        layout_bytes=len(meta.layout),
        layout_digest=document_digest(meta.layout),
    )
    return encode(head) + meta.chunk_digests + meta.layout


HEADER_OF_4_GIB = struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 2, 0, 2**32 - 1)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", TornFrame, "no chunk protocol"),
        (HEADER_OF_4_GIB, TornFrame, "4294967295 bytes"),
        (encode(Data(0, 0, 0)), TornFrame, "answered Data"),
        (b"FBCH", ParentUnreachable, "ended after 4 of 12 bytes"),
        (b"", ParentUnreachable, "ended the connection"),
        (encode(Trouble(Problem(reason="NotReady", message="later"))), NotReady, "parent-1 .*later"),
        # Of such reasons a lane makes its own node's trouble, and asks no other parent.
        (encode(Trouble(Problem(reason="InsufficientMemory", message="no"))), ParentUnreachable, "InsufficientMemory"),
        (encode(Trouble(Problem(reason="CommitRefused", message="no"))), ParentUnreachable, "parent-1 .*no"),
        (encode(Trouble(Problem(reason="Internal", message="no"))), ParentUnreachable, "parent-1 .*no"),
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


def test_a_layout_with_a_flipped_bit_is_refused(arena: MemoryArena) -> None:
    """Its digits say where each tensor lies: the bytes could be right, and the weights wrong."""
    damaged = bytearray(good_meta(arena))
    damaged[-1] ^= 1
    parent = ScriptedParent(lambda child: child.sendall(damaged))
    with pytest.raises(TornFrame, match=r"the layout document of arena-1+ differs"):
        pull_from(parent.address)
    parent.join(20)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"\0" * 12, TornFrame),
        (encode(Data(MIB, 4 * MIB, MIB)), TornFrame),  # an offset that was not asked for
        (encode(Data(0, 4 * MIB, MIB - 1)), TornFrame),  # a length that was not asked for
        (encode(Data(0, 5 * MIB, MIB)), TornFrame),  # a watermark beyond the arena
        (encode(frames.Pull(0, 1, 0)), TornFrame),  # a child's word
        (HEADER_OF_4_GIB, TornFrame),
        (encode(Data(0, 4 * MIB, 0)), DeadlineExceeded),  # has it and does not give it
        (encode(Trouble(Problem(reason="UnknownArena", message="gone"))), UnknownArena),
    ],
)
def test_a_bad_answer_to_a_pull(arena: MemoryArena, answer: bytes, error: type[Exception]) -> None:
    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        read_frame(child)
        child.sendall(answer)
        while child.recv(4096):
            pass

    parent = ScriptedParent(act)
    target = Target(len(DATA))
    with pytest.raises(error, match="parent-1"):
        fill(pull_from(parent.address), target)
    assert not any(target.data), "nothing was written"
    assert target.marks.received(0) == 0
    parent.join(20)


@pytest.mark.parametrize("answer", [Data(0, MIB - 1, 0), Data(0, 0, 0)])
def test_empty_answers_without_end_are_no_bytes_and_no_harm(arena: MemoryArena, answer: Data) -> None:
    """A parent that answers at once that it has nothing, as fast as it is asked: starved, and no more than that."""

    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        with contextlib.suppress(StreamEnded):
            while isinstance(pull := read_frame(child), frames.Pull):
                child.sendall(encode(Data(pull.offset, answer.watermark, 0)))

    parent = ScriptedParent(act)
    pull, target = pull_from(parent.address), Target(len(DATA))
    with contextlib.closing(pull):
        step = pull.advance(target.sink(pull), 0.5)
    assert (step.state, step.starved, step.bytes_in, step.parent_end) == ("going", True, 0, answer.watermark)
    parent.join(20)


def test_large_documents_get_the_time_that_a_slow_link_takes(arena: MemoryArena) -> None:
    """The layout comes whole, and later than the deadline for the parent's first word."""
    layout = arena.meta.layout + b" " * (8 << 20)
    meta = arena.meta
    head = MetaReply(
        identity=meta.identity,
        nbytes=meta.nbytes,
        digest=meta.digest,
        digest_chunk_bytes=DIGEST_CHUNK_BYTES,
        digests_bytes=len(meta.chunk_digests),
        layout_bytes=len(layout),
        layout_digest=document_digest(layout),
    )
    late = threading.Event()

    def act(sock: socket.socket) -> None:
        sock.sendall(encode(head) + meta.chunk_digests)
        late.wait(1.5)  # nobody sets it: this is a link that takes its time
        sock.sendall(layout)

    parent = ScriptedParent(act)
    pull = TcpTransport().connect(Peer(node="n1", address=parent.address), ARENA, "n2", 1.0)
    assert pull.meta.layout == layout
    pull.close()


def test_a_parent_that_trickles_does_not_push_the_deadline(arena: MemoryArena) -> None:
    """One byte each now and then keeps it from being silent, but a request that it can answer is due."""
    ended = threading.Event()

    def act(child: socket.socket) -> None:
        child.sendall(good_meta(arena))
        read_frame(child)
        child.sendall(encode(Data(0, 4 * MIB, MIB)))
        while not ended.wait(0.05):
            child.sendall(b"x")

    parent = ScriptedParent(act)
    with pytest.raises(DeadlineExceeded, match="parent-1"):
        fill(pull_from(parent.address, PullSettings(poll=0.1, silence=5, overdue_floor=0.5)))
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
        (struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 1, 0, 2**31), "TornFrame", "2147483648 bytes"),
        (struct.pack("<4sBBHI", b"FBCH", 9, 1, 0, 2), "TornFrame", "version 9"),
        (encode(frames.Pull(0, 1, 0)), "BadRequest", "first frame must be MetaRequest"),
        (struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 1, 0, 2) + b"{}", "TornFrame", "arena"),
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
    assert fill(pull_from(server.address)).data == DATA, "others are served as before"


@pytest.mark.parametrize(
    "sent",
    [
        encode(frames.Pull(len(DATA) - 1, 2, 0)),  # beyond the arena
        encode(MetaRequest(arena=ARENA, child="child-1")),  # a second time
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 0, frames.MAX_PULL + 1, 0),
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 0, 0, 0),
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 2**64 - 1, 1, 0),
        encode(frames.Pull(0, 1, 0))[:-16] + struct.pack("<QII", 0, 1, frames.MAX_WAIT_MS + 1),
        struct.pack("<4sBBHI", b"FBCH", frames.VERSION, 3, 0, 2**31),
    ],
)
def test_a_hostile_request_ends_the_connection_with_a_word(start: Start, sent: bytes) -> None:
    server = start()
    with raw_child(server) as child:
        introduce(child)
        child.sendall(sent + encode(frames.Pull(0, 1, 0)) * 3)
        trouble = read_frame(child)
        assert isinstance(trouble, Trouble)
        assert trouble.problem.reason == "TornFrame"
        assert child.recv(1) == b""
    assert fill(pull_from(server.address)).data == DATA, "others are served as before"


def test_a_request_is_answered_as_often_as_it_is_sent(start: Start, arena: MemoryArena) -> None:
    """A replay costs its own bytes and nothing else: no state, no memory, and the marks of nobody."""
    with raw_child(start()) as child:
        introduce(child)
        for _ in range(200):
            child.sendall(encode(frames.Pull(4096, 4096, 0)))
            data = read_frame(child)
            assert data == Data(4096, len(DATA), 4096)
            got = b""
            while len(got) < 4096:
                got += child.recv(4096 - len(got))
            assert got == DATA[4096:8192]
    eventually(lambda: arena.bytes_out == 200 * 4096, "accounted")


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


def test_a_child_that_dies_in_a_long_poll_frees_its_lease(growing: MemoryArena) -> None:
    server = TcpServer(MemoryCatalog(growing), "127.0.0.1", 0)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 1, 60_000)) * 2)
        until(growing.changed, lambda: growing.children)
    assert gone(server, growing)
    server.close()


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"connections": 1}, "already serves 1 connections; try another"),
        ({"per_address": 1}, "already serves 1 connections from 127.0.0.1"),
    ],
)
def test_one_connection_too_many_is_told_so(start: Start, limits: dict[str, float], says: str) -> None:
    server = start(**limits)
    with raw_child(server) as child:
        introduce(child)
        with pytest.raises(NotReady, match=says):
            pull_from(server.address)

    def served() -> bool:
        try:
            return fill(pull_from(server.address)).data == DATA
        except NotReady:
            return False

    eventually(served, "the place is free again")


def test_a_server_closes_while_children_wait(growing: MemoryArena) -> None:
    server = TcpServer(MemoryCatalog(growing), "127.0.0.1", 0)
    with raw_child(server) as child:
        introduce(child)
        child.sendall(encode(frames.Pull(0, 1, 60_000)))
        until(growing.changed, lambda: growing.children)
        server.close()
        assert child.recv(1) == b""
    assert gone(server, growing)


def test_both_sides_of_the_wire_know_the_same_limit() -> None:
    assert SERVE_LIMIT == frames.MAX_PULL


@pytest.mark.parametrize(
    "bad",
    [{"in_flight": 1}, {"in_flight": 65}, {"poll": 61}, {"silence": 0}, {"overdue_floor": 0}],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        PullSettings(**bad)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:70000"])
def test_no_connection_names_the_node(address: str) -> None:
    with pytest.raises(ParentUnreachable, match="parent parent-1"):
        pull_from(address)
