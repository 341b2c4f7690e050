"""What is simulated, and what comes of it. Plain values; times in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flashboot_operator.core.fanout.model import Facts, Plan
from flashboot_operator.core.fanout.plan import plan


@dataclass(frozen=True)
class Kill:
    target: int
    at: float
    detection_s: float
    """How long until the planner knows."""


@dataclass(frozen=True)
class Straggler:
    target: int
    factor: float
    """What is left of its bandwidth, both ways."""
    at: float = 0.0
    detection_s: float | None = None
    """None: nobody ever notices."""


@dataclass(frozen=True)
class Scenario:
    targets: int
    arena_bytes: float
    link: float
    """Bytes a second of each node, each way."""
    overhead_s: float
    """What passes between the request of a chunk and its first byte."""
    chunk: float
    """Bytes per request."""
    lanes: int = 1
    in_flight: int = 2
    """Requests in flight per edge."""
    sources: int = 1
    source_cap: float | None = None
    """Bytes a second that one source may send; None: the link."""
    ready: tuple[float, ...] = ()
    """When each target is ready; empty: all at 0."""
    domains: tuple[str, ...] = ()
    """Of the sources, then of the targets; empty: one domain."""
    crossing: float | None = None
    """Bytes a second of each node, each way, between domains; None: the link."""
    kills: tuple[Kill, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    planner: Callable[[Facts], Plan] = field(default=plan)

    @property
    def ideal_s(self) -> float:
        """S/B: one arena over one link."""
        return self.arena_bytes / self.link

    @property
    def source_names(self) -> list[str]:
        return [f"s{i}" for i in range(self.sources)]

    @property
    def target_names(self) -> list[str]:
        width = len(str(max(0, self.targets - 1)))
        return [f"t{i:0{width}}" for i in range(self.targets)]


@dataclass(frozen=True)
class Outcome:
    done: dict[str, float]
    """Surviving target → when it had everything."""
    took: dict[str, float]
    """The same from its own readiness."""
    sent: dict[str, float]
    """Node → bytes that it sent."""
    crossed: float
    """Bytes that went from one domain to another."""
    plans: int
    """How often the planner was asked."""
    changes: int
    """Edges of targets that had another parent before."""
    final: Plan

    @property
    def last_s(self) -> float:
        return max(self.done.values())

    @property
    def mean_took(self) -> float:
        return sum(self.took.values()) / len(self.took)

    @property
    def worst_took(self) -> float:
        return max(self.took.values())


class Unfinished(RuntimeError):
    """Nothing moves any more, and somebody lacks bytes: the plan left a target without a way to all of the arena."""
