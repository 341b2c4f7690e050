"""What an agent says while bytes flow, and how often: what a clone got at once, what changes slowly once a second."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flashboot_agent.memory.probe import HostFacts
from flashboot_agent.node.observe import Recent
from flashboot_agent.node.pulse import Pulse
from flashboot_agent.wire.arena import ArenaState

FACTS = HostFacts(page_bytes=4096, shmem_enabled="never", huge_pages_total=0, huge_pages_free=0, huge_page_bytes=0)


@dataclass
class Marks:
    generation: int = 0


@dataclass
class Arena:
    state: ArenaState
    marks: Marks = field(default_factory=Marks)


def test_bytes_that_arrive_are_told_at_every_look() -> None:
    pulse, arena = Pulse(), Arena("filling")
    assert not pulse.moved([arena], 100.0)
    for tenth in range(3):
        arena.marks.generation += 7
        assert pulse.moved([arena], 100.1 + tenth / 10)
    assert not pulse.moved([arena], 100.4), "nothing came"


def test_bytes_that_leave_a_resident_arena_are_told_once_a_second_and_never_lost() -> None:
    pulse, arena = Pulse(), Arena("sealed")
    assert not pulse.moved([arena], 100.0)
    arena.marks.generation += 1
    assert not pulse.moved([arena], 100.9)
    assert pulse.moved([arena], 101.0)
    assert not pulse.moved([arena], 102.0)


def test_the_hosts_facts_are_read_once_a_second() -> None:
    reads = iter(replace(FACTS, huge_pages_free=number) for number in range(2))
    now = [10.0]
    facts = Recent(lambda: next(reads), clock=lambda: now[0])
    assert [facts().huge_pages_free, facts().huge_pages_free] == [0, 0]
    now[0] = 10.99
    assert facts().huge_pages_free == 0
    now[0] = 11.0
    assert facts().huge_pages_free == 1
