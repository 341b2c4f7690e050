"""What every transport must do, whatever carries the bytes. A new transport joins `PAIRS` and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest

from flashboot_agent._native import BYTES_IN, REFETCHED, MarksClosed
from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import NotReady, ParentUnreachable, UnknownArena
from flashboot_agent.core.lanes import lane_bounds
from flashboot_agent.transport.base import ArenaCatalog, Progress, Pull, Server, Transport
from flashboot_agent.transport.choose import connect
from flashboot_agent.transport.conversation import ServerSettings
from flashboot_agent.transport.map import MapTransport
from flashboot_agent.transport.nixl import NixlTransport
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.trust.credentials import Credentials
from flashboot_agent.wire.arena import Peer
from tests.component.agents import eventually
from tests.component.memory_catalog import MIB, MemoryArena, MemoryCatalog, Target, until
from tests.component.pulling import Pulling, patient, pull_all
from tests.component.trust import Issuer

ARENA = "arena-" + "1" * 32
OTHER = "arena-" + "2" * 32
PULL = PullSettings(poll=0.2)


class Pair(Protocol):
    """One way to carry bytes, both ends."""

    counts_sent: bool
    """The parent's marks count what left."""

    def offer(self, catalog: ArenaCatalog, node: str) -> tuple[Server | None, Transport, Peer]:
        """A parent on `node`, and how its children reach it."""


class TcpPair:
    counts_sent = True

    def offer(self, catalog: ArenaCatalog, node: str) -> tuple[Server | None, Transport, Peer]:
        server = TcpServer(catalog, "127.0.0.1", 0)
        return server, TcpTransport(PULL), Peer(node=node, address=server.address)


class Shown:
    """Credentials that never change."""

    version = 1

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def current(self) -> Credentials:
        return self._credentials


class AnyChild(TcpTransport):
    """The child's name is the test's; its certificate has to name it."""

    def __init__(self, issuer: Issuer) -> None:
        super().__init__(PULL)
        self._issuer = issuer

    def connect(self, peer: Peer, arena: str, child: str, deadline: float) -> Pull:
        own = Shown(self._issuer.issue_agent(child))
        return TcpTransport(PULL, own).connect(peer, arena, child, deadline)


class TlsPair:
    counts_sent = True
    issuer = Issuer()

    def offer(self, catalog: ArenaCatalog, node: str) -> tuple[Server | None, Transport, Peer]:
        server = TcpServer(catalog, "127.0.0.1", 0, credentials=Shown(self.issuer.issue_agent(node)))
        return server, AnyChild(self.issuer), Peer(node=node, address=server.address)


class MapPair:
    counts_sent = False

    def offer(self, catalog: ArenaCatalog, node: str) -> tuple[Server | None, Transport, Peer]:
        return None, MapTransport(node, catalog, threads=2), Peer(node=node, address="127.0.0.1:1")


class NixlPair:
    """Over UCX's TCP here; both ends in one process."""

    counts_sent = True

    def offer(self, catalog: ArenaCatalog, node: str) -> tuple[Server | None, Transport, Peer]:
        server = TcpServer(catalog, "127.0.0.1", 0, settings=ServerSettings(nixl=True))
        return server, NixlTransport(TcpTransport(PULL), PULL), Peer(node=node, address=server.address)


PAIRS: dict[str, type[Pair]] = {"map": MapPair, "nixl": NixlPair, "tcp": TcpPair, "tls": TlsPair}


SLOW = ("nixl",)
"""UCX takes half a second to start, and as long to end."""


@pytest.fixture(params=[pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in sorted(PAIRS)])
def pair(request: pytest.FixtureRequest) -> Pair:
    if request.param == "nixl":
        pytest.importorskip("nixl", reason="the extra flashboot[nixl] is not installed")
    return PAIRS[request.param]()


def arena_bytes(size: int) -> bytes:
    step = bytes((i * 131 + (i >> 8) * 17) & 0xFF for i in range(65_521))
    return (step * (size // len(step) + 1))[:size]


DATA = arena_bytes(5 * MIB + 4097)


class World:
    """A parent with one arena, and ways to pull from it."""

    def __init__(self, pair: Pair, arena: MemoryArena, node: str = "parent-1") -> None:
        self.arena = arena
        self.catalog = MemoryCatalog(arena)
        self.server, self.transport, self.peer = pair.offer(self.catalog, node)
        self._pulls: list[Pull] = []

    def connect(self, arena: str = ARENA, child: str = "child-1") -> Pull:
        pull = self.transport.connect(self.peer, arena, child, 10)
        self._pulls.append(pull)
        return pull

    def close(self) -> None:
        for pull in self._pulls:
            pull.close()
        until(self.arena.changed, lambda: not self.arena.children)
        if self.server is not None:
            self.server.close()


@pytest.fixture
def world(pair: Pair) -> Iterator[World]:
    built = World(pair, MemoryArena(ARENA, DATA))
    yield built
    built.close()


@pytest.fixture
def growing(pair: Pair) -> Iterator[World]:
    built = World(pair, MemoryArena(ARENA, DATA, watermark=0))
    yield built
    built.close()


def test_metadata_comes_before_the_first_byte(world: World) -> None:
    pull = world.connect()
    assert pull.meta == world.arena.meta
    until(world.arena.changed, lambda: world.arena.children == ["child-1"])
    pull.close()
    until(world.arena.changed, lambda: not world.arena.children)


def test_a_whole_arena_arrives_verified_and_is_accounted(world: World, pair: Pair) -> None:
    target = Target(len(DATA))
    pull = world.connect()
    steps = pull_all(pull, target)
    assert target.data == DATA
    assert root_digest(chunk_digests(memoryview(target.data))) == pull.meta.digest
    assert target.marks.verified(0) == target.marks.received(0) == len(DATA)
    assert sum(step.bytes_in for step in steps) == target.marks.counter(BYTES_IN) == len(DATA)
    assert steps[-1].parent_end == len(DATA)
    if pair.counts_sent:
        eventually(lambda: world.arena.bytes_out == len(DATA), "accounted at the parent")


@pytest.mark.parametrize("start", [1, MIB, 3 * MIB + 17, len(DATA) - 1, len(DATA)])
def test_a_pull_goes_on_at_any_byte(world: World, start: int) -> None:
    target = Target(len(DATA))
    target.resume(DATA, start)
    pull_all(world.connect(), target)
    assert target.data == DATA
    assert target.marks.verified(0) == len(DATA)
    assert target.marks.counter(BYTES_IN) == len(DATA) - start, "received again"


def test_a_wrong_chunk_is_told_and_received_again(world: World) -> None:
    """One that another parent began, and damaged."""
    target = Target(len(DATA))
    target.resume(DATA, 2 * MIB + 100)
    target.data[2 * MIB + 50] ^= 1
    steps: list[Progress] = []
    pull = world.connect()
    sink = patient(target.sink(pull))
    while not steps or steps[-1].state != "differs":
        steps.append(pull.advance(sink, 5))
    assert steps[-1].offset == 2 * MIB
    assert target.marks.verified(0) == target.marks.received(0) == 2 * MIB
    assert target.marks.counter(REFETCHED) == 1
    pull_all(pull, target)
    assert target.data == DATA


def test_a_parent_whose_bytes_differ_from_its_digests_is_never_believed(pair: Pair) -> None:
    damaged = bytearray(DATA)
    damaged[3 * MIB + 5] ^= 1
    world = World(pair, MemoryArena(ARENA, damaged, table=chunk_digests(DATA)))
    target = Target(len(DATA))
    pull = world.connect()
    sink = patient(target.sink(pull))
    offsets = [step.offset for step in (pull.advance(sink, 5) for _ in range(20)) if step.state == "differs"]
    assert set(offsets) == {3 * MIB}
    assert target.marks.verified(0) == 3 * MIB
    world.close()


def test_nothing_but_the_lane_is_written(world: World) -> None:
    target = Target(len(DATA), lanes=3)
    target.data[:] = b"\xee" * len(DATA)
    pull_all(world.connect(), target, 1)
    start, end = lane_bounds(len(DATA), 3)[1]
    assert target.data == b"\xee" * start + DATA[start:end] + b"\xee" * (len(DATA) - end)
    assert (target.marks.verified(0), target.marks.verified(2)) == (0, end)


@pytest.mark.parametrize(("theirs", "ours"), [(1, 4), (4, 1), (3, 2)])
def test_lanes_of_both_ends_need_not_be_the_same(pair: Pair, theirs: int, ours: int) -> None:
    world = World(pair, MemoryArena(ARENA, DATA, watermark=0, lanes=theirs))
    target = Target(len(DATA), lanes=ours)
    lanes = [Pulling(world.connect(), target, lane) for lane in range(ours)]
    bounds = lane_bounds(len(DATA), theirs)
    for lane in reversed(range(theirs)):  # the last bytes first
        world.arena.marks.set_verified(lane, bounds[lane][1])
    for pulling in lanes:
        pulling.end()
        assert pulling.failure is None
    assert target.data == DATA
    assert target.marks.counter(BYTES_IN) == len(DATA)
    world.close()


def test_a_child_follows_a_growing_parent(growing: World) -> None:
    target = Target(len(DATA))
    pulling = Pulling(growing.connect(), target)
    for watermark in (MIB, MIB + 1, 3 * MIB, 4 * MIB - 1, len(DATA)):
        growing.arena.rise(watermark)
        pulling.until(watermark // MIB * MIB if watermark < len(DATA) else len(DATA))
        assert target.marks.received(0) <= watermark
    pulling.end()
    assert pulling.failure is None
    assert target.data == DATA


def test_a_resumed_child_does_not_wait_for_more_than_the_parent_can_verify(growing: World) -> None:
    """It goes on in the middle of a chunk, and gets that chunk's rest as soon as the parent has the chunk."""
    growing.arena.rise(2 * MIB)
    target = Target(len(DATA))
    target.resume(DATA, MIB + 100)
    pulling = Pulling(growing.connect(), target)
    pulling.until(2 * MIB)
    growing.arena.rise(len(DATA))
    pulling.end()
    assert pulling.failure is None


def test_a_parent_that_waits_itself_is_not_blamed(growing: World) -> None:
    """Its marks stand still for many polls: the pull goes on and says each time that it is starved."""
    growing.arena.rise(MIB)
    target = Target(len(DATA))
    pulling = Pulling(growing.connect(), target)
    eventually(lambda: pulling.starved >= 20, "starved for a second")
    assert target.marks.received(0) == MIB
    growing.arena.rise(len(DATA))
    pulling.end()
    assert pulling.failure is None
    assert target.data == DATA


def test_an_arena_is_served_while_it_is_still_received(pair: Pair, growing: World) -> None:
    """Three nodes in a chain: the last holds bytes before the middle one is complete, each byte leaves each once."""
    middle = MemoryArena(ARENA, bytearray(len(DATA)), watermark=0, table=chunk_digests(DATA))
    between = Target(len(DATA))
    between.data, between.marks = middle.data, middle.marks  # type: ignore[assignment]
    second = World(pair, middle, "parent-2")
    last = Target(len(DATA))
    to_middle = Pulling(growing.connect(), between)
    to_last = Pulling(second.connect(child="child-2"), last)
    growing.arena.rise(2 * MIB)
    to_last.until(2 * MIB)
    assert middle.marks.verified(0) == 2 * MIB
    growing.arena.rise(len(DATA))
    to_middle.end()
    to_last.end()
    assert middle.data == last.data == DATA
    if pair.counts_sent:
        assert growing.arena.bytes_out == middle.bytes_out == len(DATA)
    second.close()


def test_an_unknown_arena_is_refused_by_name(world: World) -> None:
    with pytest.raises(UnknownArena, match=OTHER):
        world.connect(OTHER)
    assert world.connect().meta == world.arena.meta


def test_an_arena_without_metadata_is_not_ready(world: World) -> None:
    world.catalog.not_ready.add(ARENA)
    with pytest.raises(NotReady, match="has no metadata yet"):
        world.connect()


def test_an_arena_dropped_in_the_middle_ends_the_pull(growing: World) -> None:
    growing.arena.rise(2 * MIB)
    pulling = Pulling(growing.connect(), Target(len(DATA)))
    pulling.until(2 * MIB)
    growing.arena.drop()
    pulling.end()
    assert isinstance(pulling.failure, UnknownArena), pulling.failure


def test_our_own_arena_dropped_in_the_middle_ends_the_pull_and_blames_nobody(growing: World) -> None:
    growing.arena.rise(2 * MIB)
    pulling = Pulling(growing.connect(), Target(len(DATA)))
    pulling.until(2 * MIB)
    pulling.target.marks.close()
    pulling.end()
    assert isinstance(pulling.failure, MarksClosed), pulling.failure


def test_a_parent_that_goes_away_in_the_middle_is_unreachable(growing: World) -> None:
    if growing.server is None:
        pytest.skip("a parent in the same process goes with its child")
    growing.arena.rise(2 * MIB)
    target = Target(len(DATA))
    pulling = Pulling(growing.connect(), target)
    pulling.until(2 * MIB)
    growing.server.close()
    pulling.end()
    assert isinstance(pulling.failure, ParentUnreachable)
    assert target.data[: 2 * MIB] == DATA[: 2 * MIB], "what was reported stays"
    with pytest.raises(ParentUnreachable):
        growing.connect()


def test_close_from_another_thread_ends_a_waiting_pull(growing: World) -> None:
    pull = growing.connect()
    pulling = Pulling(pull, Target(len(DATA)))
    eventually(lambda: pulling.starved, "waits")
    pull.close()
    pull.close()
    pulling.end()
    assert isinstance(pulling.failure, ParentUnreachable)
    until(growing.arena.changed, lambda: not growing.arena.children)


def test_a_closed_pull_lets_go_of_the_memory(world: World) -> None:
    """So that the child can unmap it, and seal it. Also after a failure, whose traceback keeps frames alive."""
    target = Target(len(DATA))
    pull = world.connect()
    sink = patient(target.sink(pull))
    pull.advance(sink, 5)
    pull.close()
    with pytest.raises(ParentUnreachable) as failure:
        pull.advance(sink, 5)
    sink.memory.release()
    assert failure.value.__traceback__ is not None


def test_memory_of_another_size_is_refused(world: World) -> None:
    pull = world.connect()
    with pytest.raises(ValueError, match=str(len(DATA))):
        pull.advance(Target(10).sink(pull), 1)


def test_many_children_at_once(world: World, pair: Pair) -> None:
    children = [Pulling(world.connect(child=f"child-{i}"), Target(len(DATA))) for i in range(6)]
    for pulling in children:
        pulling.end()
    assert all(pulling.target.data == DATA for pulling in children)
    if pair.counts_sent:
        eventually(lambda: world.arena.bytes_out == 6 * len(DATA), "all accounted")


def test_the_choice_says_why(world: World) -> None:
    elsewhere = MapTransport("another-node", world.catalog)
    connected = connect([elsewhere, world.transport], world.peer, ARENA, "child-1", 10)
    connected.pull.close()
    assert connected.transport == world.transport.name
    assert connected.reason.startswith(f"{world.transport.name}: ")
    assert ("parent-1" if world.server is None else world.server.address) in connected.reason
    assert connected.reason.endswith("not map: parent-1 is another node than another-node")
    if world.server is not None:
        world.server.close()
        with pytest.raises(
            ParentUnreachable,
            match=rf"no way to parent parent-1 .* not map: .* not {world.transport.name}: parent parent-1",
        ):
            connect([elsewhere, world.transport], world.peer, ARENA, "child-1", 10)
    with pytest.raises(ParentUnreachable, match="no transport is configured"):
        connect([], world.peer, ARENA, "child-1", 10)


def test_an_arena_is_never_copied_into_itself() -> None:
    """An operator that names a node as its own parent must not make it wait for itself."""
    arena = MemoryArena(ARENA, bytearray(DATA), watermark=0)
    pull = MapTransport("n1", MemoryCatalog(arena)).connect(Peer(node="n1", address="127.0.0.1:1"), ARENA, "n1", 1)
    target = Target(len(DATA))
    target.marks = arena.marks
    with pytest.raises(ParentUnreachable, match="is to be filled"):
        pull.advance(target.sink(pull), 1)
    pull.close()
