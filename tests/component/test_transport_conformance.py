"""What every transport must do, whatever carries the bytes. A new transport joins `PAIRS` and nothing else changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import FlashBootError, NotReady, ParentUnreachable, UnknownArena
from flashboot_agent.transport.base import ArenaCatalog, Piece, Pull, Server, Transport
from flashboot_agent.transport.choose import choose
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
from flashboot_agent.transport.tcp_server import ServerSettings, TcpServer
from flashboot_agent.wire.control import Peer
from tests.component.memory_catalog import MemoryArena, MemoryCatalog, until

MIB = 1 << 20
ARENA = "arena-" + "1" * 32
OTHER = "arena-" + "2" * 32


class TcpPair:
    transport: Transport = TcpTransport(PullSettings(poll=0.2))

    @staticmethod
    def serve(catalog: ArenaCatalog) -> Server:
        return TcpServer(catalog, "127.0.0.1", 0, settings=ServerSettings(look=0.05))


PAIRS = {"tcp": TcpPair}


@pytest.fixture(params=sorted(PAIRS))
def pair(request: pytest.FixtureRequest) -> TcpPair:
    return PAIRS[request.param]()


def arena_bytes(size: int) -> bytes:
    step = bytes((i * 131 + (i >> 8) * 17) & 0xFF for i in range(65_521))
    return (step * (size // len(step) + 1))[:size]


DATA = arena_bytes(5 * MIB + 4097)


class World:
    """A server with one arena, and ways to pull from it."""

    def __init__(self, pair: TcpPair, *, watermark: int | None = None) -> None:
        self.transport = pair.transport
        self.arena = MemoryArena(ARENA, DATA, watermark=watermark)
        self.catalog = MemoryCatalog(self.arena)
        self.server = pair.serve(self.catalog)
        self.peer = Peer(node="parent-1", address=self.server.address)
        self._pulls: list[Pull] = []

    def connect(self, arena: str = ARENA, child: str = "child-1", peer: Peer | None = None) -> Pull:
        pull = self.transport.connect(peer or self.peer, arena, child, 10)
        self._pulls.append(pull)
        return pull

    def close(self) -> None:
        for pull in self._pulls:
            pull.close()
        until(self.arena.changed, lambda: not self.arena.children)
        self.server.close()


@pytest.fixture
def world(pair: TcpPair) -> Iterator[World]:
    built = World(pair)
    yield built
    built.close()


@pytest.fixture
def growing(pair: TcpPair) -> Iterator[World]:
    built = World(pair, watermark=0)
    yield built
    built.close()


class Streaming(threading.Thread):
    """A stream in a thread of its own, so that the test can act meanwhile."""

    def __init__(self, pull: Pull, start: int, into: bytearray, each: Callable[[Piece], None] | None = None) -> None:
        super().__init__(daemon=True)
        self.changed = threading.Condition()
        self.done, self.empty = start, 0
        self.failure: FlashBootError | None = None
        self._pull, self._start_at, self._into, self._each = pull, start, into, each
        self.start()

    def run(self) -> None:
        try:
            for piece in self._pull.stream(self._start_at, memoryview(self._into)):
                with self.changed:
                    assert piece.offset == self.done, "in order"
                    self.done += piece.nbytes
                    self.empty += not piece.nbytes
                    self.changed.notify_all()
                if self._each is not None:
                    self._each(piece)
        except FlashBootError as error:
            self.failure = error

    def end(self) -> None:
        self.join(30)
        assert not self.is_alive(), f"the stream hangs at byte {self.done}"


def test_metadata_comes_before_the_first_byte(world: World) -> None:
    pull = world.connect()
    assert pull.meta == world.arena.meta
    until(world.arena.changed, lambda: world.arena.children == ["child-1"])
    pull.close()
    until(world.arena.changed, lambda: not world.arena.children)


def test_a_whole_arena_arrives_in_order_and_is_accounted(world: World) -> None:
    into = bytearray(len(DATA))
    pull = world.connect()
    done = 0
    for piece in pull.stream(0, memoryview(into)):
        assert piece.offset == done
        assert piece.parent_watermark == len(DATA)
        done += piece.nbytes
        assert into[:done] == DATA[:done], "a reported piece is there"
    pull.close()
    assert into == DATA
    assert root_digest(chunk_digests(memoryview(into))) == pull.meta.digest
    until(world.arena.changed, lambda: world.arena.bytes_out == len(DATA))


@pytest.mark.parametrize("start", [1, MIB, 3 * MIB + 17, len(DATA) - 1, len(DATA)])
def test_a_pull_starts_at_any_byte(world: World, start: int) -> None:
    into = bytearray(len(DATA))
    pull = world.connect()
    assert sum(piece.nbytes for piece in pull.stream(start, memoryview(into))) == len(DATA) - start
    assert into == bytes(start) + DATA[start:]
    pull.close()


def test_an_abandoned_stream_can_start_again_elsewhere(world: World) -> None:
    """The way of a chunk with a wrong digest: stop, and fetch from that chunk on again."""
    into = bytearray(len(DATA))
    pull = world.connect()
    for restart in (0, 2 * MIB, MIB):
        stream = pull.stream(restart, memoryview(into))
        assert next(stream).offset == restart
        stream.close()
    into[MIB : 2 * MIB] = bytes(MIB)
    assert sum(piece.nbytes for piece in pull.stream(MIB, memoryview(into))) == len(DATA) - MIB
    assert into == DATA
    pull.close()


def test_nothing_but_the_rest_of_the_arena_is_written(world: World) -> None:
    into = bytearray(b"\xee" * len(DATA))
    pull = world.connect()
    stream = pull.stream(3 * MIB, memoryview(into))
    next(stream)
    stream.close()
    assert list(pull.stream(len(DATA), memoryview(into))) == []
    assert into[: 3 * MIB] == b"\xee" * (3 * MIB)
    pull.close()


def test_a_child_follows_a_growing_watermark(growing: World) -> None:
    into = bytearray(len(DATA))
    streaming = Streaming(growing.connect(), 0, into)
    for watermark in (MIB, MIB + 1, 3 * MIB, 4 * MIB - 1, len(DATA)):
        growing.arena.rise(watermark)
        whole = watermark // MIB * MIB if watermark < len(DATA) else len(DATA)
        until(streaming.changed, lambda whole=whole: streaming.done >= whole)
        assert streaming.done <= watermark
    streaming.end()
    assert streaming.failure is None
    assert into == DATA


def test_a_resumed_child_does_not_wait_for_more_than_the_parent_can_verify(growing: World) -> None:
    """It goes on in the middle of a chunk, and gets that chunk's rest as soon as the parent has the chunk."""
    growing.arena.rise(2 * MIB)
    streaming = Streaming(growing.connect(), MIB + 100, bytearray(len(DATA)))
    until(streaming.changed, lambda: streaming.done == 2 * MIB)
    growing.arena.rise(len(DATA))
    streaming.end()
    assert streaming.failure is None


def test_a_parent_that_waits_itself_is_not_blamed(growing: World) -> None:
    """Its watermark stands still for many polls: the stream goes on and says so each time."""
    into = bytearray(len(DATA))
    growing.arena.rise(MIB)
    streaming = Streaming(growing.connect(), 0, into)
    until(streaming.changed, lambda: streaming.empty >= 5)
    assert streaming.done == MIB
    growing.arena.rise(len(DATA))
    streaming.end()
    assert streaming.failure is None
    assert into == DATA


def test_an_arena_is_served_while_it_is_still_received(pair: TcpPair, growing: World) -> None:
    """Three nodes in a chain: the last one holds bytes before the middle one is complete."""
    middle_bytes, last_bytes = bytearray(len(DATA)), bytearray(len(DATA))
    middle = MemoryArena(ARENA, DATA, watermark=0)
    middle.data = memoryview(middle_bytes)  # type: ignore[assignment]
    second = pair.serve(MemoryCatalog(middle))
    to_middle = Streaming(growing.connect(), 0, middle_bytes, lambda piece: middle.rise(piece.offset + piece.nbytes))
    pull = growing.connect(ARENA, "child-2", Peer(node="parent-2", address=second.address))
    to_last = Streaming(pull, 0, last_bytes)
    growing.arena.rise(2 * MIB)
    until(to_last.changed, lambda: to_last.done == 2 * MIB)
    assert to_middle.done == 2 * MIB
    growing.arena.rise(len(DATA))
    to_middle.end()
    to_last.end()
    assert middle_bytes == last_bytes == DATA
    assert growing.arena.bytes_out == middle.bytes_out == len(DATA), "each byte left each node once"
    second.close()


def test_an_unknown_arena_is_refused_by_name(world: World) -> None:
    with pytest.raises(UnknownArena, match=OTHER):
        world.connect(OTHER)
    assert world.connect().meta == world.arena.meta


def test_an_arena_without_metadata_is_not_ready(world: World) -> None:
    world.catalog.not_ready.add(ARENA)
    with pytest.raises(NotReady, match="parent-1"):
        world.connect()


def test_an_arena_dropped_in_the_middle_ends_the_stream(growing: World) -> None:
    growing.arena.rise(2 * MIB)
    streaming = Streaming(growing.connect(), 0, bytearray(len(DATA)))
    until(streaming.changed, lambda: streaming.done == 2 * MIB)
    growing.arena.drop()
    streaming.end()
    assert isinstance(streaming.failure, UnknownArena)


def test_a_parent_that_goes_away_in_the_middle_is_unreachable(growing: World) -> None:
    growing.arena.rise(2 * MIB)
    into = bytearray(len(DATA))
    streaming = Streaming(growing.connect(), 0, into)
    until(streaming.changed, lambda: streaming.done == 2 * MIB)
    growing.server.close()
    streaming.end()
    assert isinstance(streaming.failure, ParentUnreachable)
    assert into[: 2 * MIB] == DATA[: 2 * MIB], "what was reported stays"
    with pytest.raises(ParentUnreachable):
        growing.connect()


def test_close_from_another_thread_ends_a_waiting_stream(growing: World) -> None:
    pull = growing.connect()
    streaming = Streaming(pull, 0, bytearray(len(DATA)))
    until(growing.arena.changed, lambda: growing.arena.waiting > 0)
    pull.close()
    pull.close()
    streaming.end()
    assert isinstance(streaming.failure, ParentUnreachable)
    until(growing.arena.changed, lambda: not growing.arena.children)
    with pytest.raises(ParentUnreachable):
        next(pull.stream(0, memoryview(bytearray(len(DATA)))))


def test_memory_of_another_size_is_refused(world: World) -> None:
    pull = world.connect()
    with pytest.raises(ValueError, match=str(len(DATA))):
        next(pull.stream(0, memoryview(bytearray(10))))
    pull.close()


def test_many_children_at_once(world: World) -> None:
    targets = [bytearray(len(DATA)) for _ in range(6)]
    streams = [Streaming(world.connect(child=f"child-{i}"), 0, into) for i, into in enumerate(targets)]
    for streaming in streams:
        streaming.end()
    assert all(into == DATA for into in targets)
    until(world.arena.changed, lambda: world.arena.bytes_out == 6 * len(DATA))


def test_the_probe_says_why(world: World) -> None:
    choice = choose([world.transport], world.peer)
    assert choice.transport is world.transport
    assert choice.reason.startswith(f"{world.transport.name}: {world.peer.address}")
    world.server.close()
    with pytest.raises(ParentUnreachable, match=f"not {world.transport.name}: parent parent-1"):
        choose([world.transport], world.peer)
    with pytest.raises(ParentUnreachable, match="no transport is configured"):
        choose([], world.peer)
