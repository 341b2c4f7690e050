"""The agent's tries to read from other nodes' arenas: when, how often, what is told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from flashboot_agent.core.errors import FlashBootError, ParentUnreachable, UnknownArena
from flashboot_agent.node.probes import EVERY_SECONDS, MOST_PAUSE_SECONDS, Probes, attempt, pause
from flashboot_agent.transport.choose import Connected
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import Probe

ARENA = "arena-" + "a" * 32


def probe(after: int = 0) -> Probe:
    return Probe(arena=ARENA, peer=Peer(node="n1", address="10.0.0.1:9441"), first_after_seconds=after)


class Story:
    """A node that is tried, on a clock of the test's own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tries = 0
        self.changes = 0
        self.fails: FlashBootError | None = ParentUnreachable("n1: no connection")
        self.probes = Probes(self._change, clock=lambda: self.now)

    def _change(self) -> None:
        self.changes += 1

    def connect(self, peer: Peer, arena: str) -> Connected:
        self.tries += 1
        assert self.fails is not None
        raise self.fails

    def at(self, now: float, *wanted: Probe) -> None:
        self.now = now
        begun: list[Coroutine[object, object, None]] = []
        self.probes.round(wanted, self.connect, begun.append)

        async def run() -> None:
            await asyncio.gather(*begun)

        asyncio.run(run())


def test_failures_are_counted_and_the_pauses_double() -> None:
    story = Story()
    story.at(0, probe())
    story.at(1, probe())
    assert story.tries == 1, "not before its pause is over"
    story.at(2, probe())
    story.at(5.9, probe())
    assert story.tries == 2
    story.at(6, probe())
    [seen] = story.probes.observed()
    assert (seen.node, seen.failures, story.tries, story.changes) == ("n1", 3, 3, 3)
    assert seen.problem is not None
    assert seen.failing_since is not None
    assert seen.failing_since < seen.at
    assert [pause(n) for n in (1, 2, 3, 9, 99)] == [2, 4, 8, MOST_PAUSE_SECONDS, MOST_PAUSE_SECONDS]
    assert pause(0) == EVERY_SECONDS


def test_what_says_nothing_of_the_other_node_is_not_held_against_it() -> None:
    story = Story()
    for error in (UnknownArena("dropped"), FlashBootError("ours")):
        story.fails = error
        assert isinstance(attempt(probe(), story.connect), str)
        story.at(story.now + EVERY_SECONDS, probe())
    assert story.probes.observed() == []
    assert story.changes == 0


def test_a_suspect_is_tried_at_once_and_who_is_not_wanted_is_forgotten() -> None:
    story = Story()
    story.at(0, probe(60))
    story.at(10, probe(60))
    assert story.tries == 0
    story.at(11, probe(0))
    assert story.tries == 1
    story.at(12, probe(60))
    assert story.tries == 1, "the failure's own pause counts"
    story.at(13)
    assert story.probes.observed() == []


def test_at_most_a_few_at_a_time() -> None:
    story = Story()
    many = [
        Probe(arena=ARENA, peer=Peer(node=f"n{i}", address="10.0.0.1:9441"), first_after_seconds=0) for i in range(9)
    ]
    story.at(0, *many)
    assert story.tries == 4
