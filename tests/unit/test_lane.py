"""Whom a lane leaves, whom it accuses, and where it goes on: a lane against scripted parents, without a socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from flashboot_agent.core.errors import (
    CommitRefused,
    DeadlineExceeded,
    FlashBootError,
    InsufficientMemory,
    NotReady,
    ParentUnreachable,
    PeerRefused,
    TornFrame,
    UnknownArena,
)
from flashboot_agent.node.feeds import Feeds
from flashboot_agent.node.lane import Lane
from flashboot_agent.node.orders import Cancelled, Orders
from flashboot_agent.node.settings import Settings
from flashboot_agent.transport.base import ArenaMeta, Progress, Pull, Sink
from flashboot_agent.transport.choose import Connected
from flashboot_agent.wire import desired
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.problem import Problem

A, B, C = (Peer(node=name, address=f"10.0.0.{number}:9441") for number, name in enumerate("abc", 1))
ARENA = "arena-" + "1" * 32
SETTINGS = Settings("n1", "10.0.0.9", backoff_seconds=0.01, backoff_most_seconds=0.02, stall_seconds=5)

Step = Progress | FlashBootError | Callable[[], Progress]
GOING = Progress("going", bytes_in=1)
DONE = Progress("done", bytes_in=1)


def wanted(*lanes: list[Peer]) -> WantedArena:
    return WantedArena(
        arena=ARENA,
        namespace="serving",
        model_replica="m",
        model_replica_uid="11111111-2222",
        expected_identity="sha256:" + "0" * 64,
        role="clone",
        lanes=[desired.Lane(parents=parents) for parents in lanes],
    )


class Mapping:
    view = memoryview(bytearray(1))


class FakeArena:
    """What a lane needs of an arena."""

    def __init__(self) -> None:
        self.name = ARENA
        self.feeds = Feeds(2)
        self.marks = SimpleNamespace(received=lambda lane: 0)
        self.meta = SimpleNamespace(chunk_digests=b"")
        self.region = SimpleNamespace(map=self._map)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        yield

    @contextmanager
    def _map(self, *, writable: bool) -> Iterator[Mapping]:
        assert writable
        yield Mapping()


class Scripted(Pull):
    """One connection: what `advance` comes to, one after another."""

    def __init__(self, steps: Iterator[Step], patience: list[float]) -> None:
        self.meta = ArenaMeta(ARENA, "sha256:" + "1" * 64, 1, b"", b"", "xxh3:" + "0" * 16)
        self._steps = steps
        self._patience = patience

    def advance(self, sink: Sink, seconds: float) -> Progress:
        self._patience.append(sink.patience)
        step = next(self._steps)
        if isinstance(step, FlashBootError):
            raise step
        return step if isinstance(step, Progress) else step()

    def close(self) -> None: ...


class World:
    """The clone of a lane under test. `script`: of each parent, for each connection, an error or its steps."""

    def __init__(self, orders: WantedArena, **script: list[FlashBootError | list[Step]]) -> None:
        self.orders = Orders(orders)
        self.arena = FakeArena()
        self.script = {node: iter(connections) for node, connections in script.items()}
        self.asked: list[str] = []
        self.accused: list[tuple[str, str]] = []
        self.patience: list[float] = []

    def connect(self, parent: Peer) -> Connected:
        self.asked.append(parent.node)
        found = next(self.script[parent.node])
        if isinstance(found, FlashBootError):
            raise found
        return Connected(Scripted(iter(found), self.patience), "fake", "because")

    def complete(self, lane: int) -> bool:
        return False

    def arena_for(self, parent: Peer, meta: ArenaMeta) -> Any:
        return self.arena

    def accuse(self, parent: Peer, problem: Problem) -> None:
        self.accused.append((parent.node, problem.reason))

    def news(self, *, small: bool = False) -> None: ...

    def run(self, lane: int = 0) -> Lane:
        made = Lane(lane, self, SETTINGS)
        made.run()
        return made


def starved(seconds: float) -> Progress:
    return Progress("going", parent_end=7, starved=True, silent_seconds=seconds)


def differs(offset: int) -> Progress:
    return Progress("differs", offset)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (ParentUnreachable("gone"), "ParentUnreachable"),
        (DeadlineExceeded("overdue"), "Timeout"),
        (TornFrame("no frame"), "TornFrame"),
        (PeerRefused("another name"), "PeerRefused"),
        (UnknownArena("dropped"), "UnknownArena"),
    ],
)
def test_a_parent_that_fails_is_accused_and_the_next_goes_on_at_once(failure: FlashBootError, reason: str) -> None:
    world = World(wanted([A, B, C]), a=[[GOING, failure]], b=[[GOING, DONE]])
    lane = world.run()
    assert world.asked == ["a", "b"]
    assert world.accused == [("a", reason)]
    assert (world.arena.feeds[0].parent, world.arena.feeds.repairs, lane.problem) == ("b", 1, None)
    assert [(path.node, path.bytes_in) for path in world.arena.feeds.paths()] == [("a", 1), ("b", 2)]


def test_a_starved_parent_is_never_accused_and_left_for_another_after_a_while() -> None:
    world = World(wanted([A, B]), a=[[starved(0.1), starved(4.9), starved(5.0)]], b=[[DONE]])
    world.run()
    assert (world.asked, world.accused) == (["a", "b"], [])


def test_a_starved_parent_without_an_alternative_is_kept() -> None:
    world = World(wanted([A]), a=[[starved(5.0), starved(60.0), DONE]])
    world.run()
    assert (world.asked, world.accused) == (["a"], [])


def test_a_parent_that_is_silent_and_not_starved_is_the_transports_to_judge() -> None:
    world = World(wanted([A, B]), a=[[Progress("going", silent_seconds=60.0), DONE]])
    world.run()
    assert world.asked == ["a"]


def test_a_lying_parent_is_asked_three_times_for_the_chunk_then_accused() -> None:
    world = World(wanted([A, B]), a=[[differs(5), differs(5), GOING, differs(5)]], b=[[DONE]])
    world.run()
    assert world.accused == [("a", "DigestMismatch")]


def test_damage_here_and_there_accuses_nobody() -> None:
    world = World(wanted([A, B]), a=[[differs(5), differs(5), differs(9), differs(9), differs(5), DONE]])
    world.run()
    assert (world.asked, world.accused) == (["a"], [])


def test_every_parent_failed_is_told_and_tried_again() -> None:
    world = World(wanted([A, B]), a=[ParentUnreachable("no a"), [DONE]], b=[ParentUnreachable("no b")])
    told: list[Problem | None] = []
    lane = Lane(0, world, SETTINGS)
    world.news = lambda *, small=False: told.append(lane.problem)  # type: ignore[method-assign]
    lane.run()
    assert world.asked == ["a", "b", "a"]
    assert told[0] is not None
    assert told[0].reason == "CloneFailed"
    assert "a: no a; b: no b" in told[0].message
    assert lane.problem is None, "put right"


def test_parents_that_have_nothing_yet_are_waited_for_without_a_word() -> None:
    world = World(wanted([A]), a=[NotReady("later"), NotReady("later"), [DONE]])
    assert world.run().problem is None
    assert world.accused == []


@pytest.mark.parametrize("trouble", [InsufficientMemory("full"), CommitRefused("sealed"), FlashBootError("a fault")])
def test_this_nodes_own_trouble_accuses_nobody_and_asks_no_other_parent(trouble: FlashBootError) -> None:
    world = World(wanted([A, B]), a=[[trouble], [DONE]])
    world.run()
    assert (world.asked, world.accused) == (["a", "a"], [])


def test_each_overdue_answer_makes_the_lane_more_patient() -> None:
    """Else a crowded link, on which everybody is slow, would be a circle of accusations."""
    overdue = DeadlineExceeded("overdue")
    world = World(wanted([A, B]), a=[[overdue], [DONE]], b=[[overdue]])
    world.run()
    assert world.patience == [1, 2, 4]


def moving(world: World, orders: WantedArena) -> Callable[[], Progress]:
    """The operator speaks while a parent brings bytes."""

    def step() -> Progress:
        world.orders.update(orders)
        return GOING

    return step


@pytest.mark.parametrize(
    ("before", "after", "asked"),
    [
        ([A], [B], ["a", "b"]),  # taken away
        ([A, B], [B, A], ["a", "b"]),  # another first
        ([A, B], [A, C], ["a"]),  # other fallbacks
        ([A], [], ["a"]),  # nobody better: what runs goes on
    ],
)
def test_a_better_parent_of_the_operator_is_taken_at_the_next_look(
    before: list[Peer], after: list[Peer], asked: list[str]
) -> None:
    world = World(wanted(before), b=[[DONE]])
    world.script["a"] = iter([[moving(world, wanted(after)), DONE]])
    world.run()
    assert (world.asked, world.accused) == (asked, [])


def test_a_lane_on_a_fallback_stays_when_the_list_is_said_again() -> None:
    """The first of the list failed it; only another first one is news."""
    world = World(wanted([A, B]), a=[ParentUnreachable("gone")])
    world.script["b"] = iter([[moving(world, wanted([A, B, C])), DONE]])
    world.run()
    assert world.asked == ["a", "b"]


def test_lanes_take_their_parents_modulo_the_orders() -> None:
    world = World(wanted([A], [B]), b=[[DONE]])
    world.run(lane=1)
    world = World(wanted([A]), a=[[DONE]])
    world.run(lane=1)
    assert world.asked == ["a"]


def test_a_cancelled_lane_ends_wherever_it_waits() -> None:
    world = World(wanted([]))
    ended = threading.Event()

    def run() -> None:
        with pytest.raises(Cancelled):
            world.run()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    world.orders.cancel()
    assert ended.wait(20)

    def cancel() -> Progress:
        world.orders.cancel()
        return GOING

    world = World(wanted([A]))
    world.script["a"] = iter([[cancel, GOING]])
    with pytest.raises(Cancelled):
        world.run()
