"""One arena is filled by one clone or load at a time, whatever takes its time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.identity import digest_of
from flashboot_agent.node import clone as module
from flashboot_agent.node.agent import Agent
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.background import Background
from flashboot_agent.node.clone import Clone
from flashboot_agent.node.drops import Drops
from flashboot_agent.node.orders import Cancelled
from flashboot_agent.node.settings import Settings
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.transport.base import ArenaMeta, Server
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import Lane, WantedArena
from tests.layouts import small

PARENT = Peer(node="a", address="10.0.0.1:9441")
LAYOUT = small()
NBYTES = LAYOUT.arena_bytes
META = ArenaMeta(
    "arena-" + "1" * 32,
    digest_of(LAYOUT.identity),
    NBYTES,
    LAYOUT.to_bytes(),
    chunk_digests(bytes(NBYTES)),
    root_digest(chunk_digests(bytes(NBYTES))),
)
WANTED = WantedArena(
    arena=META.arena,
    namespace="serving",
    model_replica="m",
    model_replica_uid="11111111-2222",
    expected_identity="sha256:" + "0" * 64,
    role="clone",
    lanes=[Lane(parents=[PARENT])],
)


class SlowStore:
    """Its memory comes after the clone was cancelled."""

    def __init__(self) -> None:
        self.clone: Clone | None = None

    def get(self, name: str) -> None:
        return None

    def allocate(self, *_: Any, **__: Any) -> Arena:
        assert self.clone is not None
        self.clone.cancel()
        return cast(Arena, object())  # whoever touches it is too late


def nothing(*_: Any) -> None:
    """Nobody listens."""


def test_memory_that_comes_after_the_clone_was_cancelled_is_not_touched() -> None:
    store = SlowStore()
    connect: Callable[..., Any] = nothing
    clone = store.clone = Clone(
        WANTED,
        cast(ArenaStore, store),
        connect,
        Settings("n1", "10.0.0.9"),
        notify=nothing,
        moved=nothing,
        done=nothing,
    )
    with pytest.raises(Cancelled):
        clone.arena_for(PARENT, META)


class ThreeLanes:
    """An arena that an earlier process left, and the store that has it."""

    name = META.arena
    nbytes = NBYTES
    state = "filling"
    record = SimpleNamespace(lanes=3, digest=META.digest, layout_digest=META.layout_digest)

    def get(self, name: str) -> ThreeLanes:
        return self


def of_three_lanes() -> Clone:
    connect: Callable[..., Any] = nothing
    store = cast(ArenaStore, ThreeLanes())
    settings = Settings("n1", "10.0.0.9")
    return Clone(WANTED, store, connect, settings, notify=nothing, moved=nothing, done=nothing)


def test_no_lane_is_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lane 1 is at its parent before lane 2 was started."""
    made: list[int] = []
    arrived = threading.Event()

    class FakeLane:
        def __init__(self, number: int, host: Clone, _: Settings) -> None:
            self.number, self._host = number, host
            if number == 2 and threading.current_thread() is threading.main_thread():
                arrived.wait(0.3)
            made.append(number)

        def run(self) -> None:
            if self.number == 1:
                self._host.arena_for(PARENT, META)
                arrived.set()

    monkeypatch.setattr(module, "Lane", FakeLane)
    clone = of_three_lanes()
    clone._fill()
    assert made == [0, 0, 1, 2]  # the first is from before it began


def test_a_lane_without_a_thread_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class FakeLane:
        def __init__(self, number: int, host: Clone, _: Settings) -> None:
            self.number, self._host = number, host

        def run(self) -> None:
            try:
                self._host.orders.wait_for_news(WANTED, 20)
            finally:
                ended.append(self.number)

    def start(thread: threading.Thread) -> None:
        if thread.name == "lane-2":
            raise RuntimeError("can't start new thread")
        really_start(thread)

    really_start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(module, "Lane", FakeLane)
    clone = of_three_lanes()
    with pytest.raises(Cancelled):
        clone._fill()
    assert ended == [1]


class Stuck:
    """A clone that does not end soon."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.asked = threading.Semaphore(0)

    def cancel(self) -> None:
        """It is in the middle of something."""

    def join(self, seconds: float) -> bool:
        self.asked.release()
        return self.ended.wait(0.01)


async def test_no_other_clone_begins_before_a_stuck_one_has_ended(tmp_path: Path) -> None:
    server: Any = cast(Server, None)
    agent = Agent(Settings("n1", "10.0.0.9", run=tmp_path), lambda _: [], lambda _: server)
    background = Background()
    drops = Drops(agent.node, background, threading.Event())
    stuck = Stuck()
    agent.node.clones[META.arena] = cast(Clone, stuck)
    drops.drop(META.arena, None, "no longer wanted")
    for _ in range(3):
        assert await asyncio.to_thread(stuck.asked.acquire, timeout=20)
        assert META.arena in drops.under_way
    stuck.ended.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*background.tasks)
    assert META.arena not in drops.under_way
