"""Whether other nodes' arenas can really be read: the probes that the operator wants of this node, and their results.

A node whose arena gave a chunk is asked again after EVERY_SECONDS; one that failed after a pause that doubles with each
failure, so that it is found well again without being asked all the time. What is this node's own trouble, or only says
that the arena is not there, says nothing about the other's data path. Loop side; a try runs in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Final

from flashboot_agent.core.errors import FlashBootError, NotReady, Refused
from flashboot_agent.logs import Log
from flashboot_agent.node.sample import read_chunk
from flashboot_agent.transport.choose import Connect
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import Probe
from flashboot_agent.wire.observed import ObservedProbe
from flashboot_agent.wire.problem import Problem

log = Log(__name__)

EVERY_SECONDS: Final = 60.0
FIRST_PAUSE_SECONDS: Final = 2.0
MOST_PAUSE_SECONDS: Final = 60.0
CHUNK_SECONDS: Final = 10.0
"""In which a chunk has to come: a busy node takes seconds, one that is stuck takes for ever."""
AT_A_TIME: Final = 4

Key = tuple[str, str]
"""Arena, node."""


@dataclass
class _Watched:
    probe: Probe
    due: float
    """By the monotonic clock."""
    running: bool = False
    seen: ObservedProbe | None = None


class Probes:
    def __init__(self, changed: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`changed` is called when a result differs from the one before."""
        self._changed = changed
        self._clock = clock
        self._watched: dict[Key, _Watched] = {}

    def observed(self) -> list[ObservedProbe]:
        return [each.seen for _, each in sorted(self._watched.items()) if each.seen is not None]

    def round(
        self, wanted: Iterable[Probe], connect: Connect, start: Callable[[Coroutine[object, object, None]], None]
    ) -> None:
        """Begin the tries that are due. What is no longer wanted is forgotten."""
        clock = self._clock()
        probes = {(probe.arena, probe.peer.node): probe for probe in wanted}
        self._watched = {key: each for key, each in self._watched.items() if key in probes}
        for key, probe in probes.items():
            watched = self._watched.setdefault(key, _Watched(probe, clock + probe.first_after_seconds))
            if probe.first_after_seconds < watched.probe.first_after_seconds:
                watched.due = min(watched.due, clock + probe.first_after_seconds)
            watched.probe = probe
        running = sum(1 for each in self._watched.values() if each.running)
        for each in sorted(self._watched.values(), key=lambda each: each.due):
            if each.due <= clock and not each.running and running < AT_A_TIME:
                running, each.running = running + 1, True
                start(self._try(each, connect))

    async def _try(self, watched: _Watched, connect: Connect) -> None:
        probe = watched.probe
        try:
            problem = await asyncio.to_thread(attempt, probe, connect)
        finally:
            watched.running = False
            watched.due = self._clock() + EVERY_SECONDS
        before = watched.seen
        watched.seen = after = result(before, probe, problem)
        if after is None:
            return
        watched.due = self._clock() + pause(after.failures)
        if before is None or (before.failures, before.problem) != (after.failures, after.problem):
            log.info("probe", arena=probe.arena, node=probe.peer.node, failures=after.failures, why=_words(problem))
            self._changed()


def attempt(probe: Probe, connect: Connect) -> Problem | str | None:
    """None: a chunk came, and is right. A problem: the other node's data path fails. Text: neither was found out."""
    try:
        read_chunk(connect(probe.peer, probe.arena).pull, CHUNK_SECONDS)
    except (NotReady, Refused) as error:
        return str(error)
    except FlashBootError as error:
        return error.problem() if type(error) is not FlashBootError else str(error)
    except OSError as error:
        return f"this node failed: {error}"
    return None


def result(before: ObservedProbe | None, probe: Probe, said: Problem | str | None) -> ObservedProbe | None:
    """What is told after a try; what it was before where the try told nothing."""
    if isinstance(said, str):
        return before
    at, key = now(), {"arena": probe.arena, "node": probe.peer.node}
    failures = before.failures if before is not None else 0
    if said is not None:
        since = before.failing_since if before is not None and failures else at
        return ObservedProbe(**key, at=at, failures=failures + 1, failing_since=since, problem=said)
    recovered = at if failures else before.recovered_at if before is not None else None
    return ObservedProbe(**key, at=at, recovered_at=recovered)


def pause(failures: int) -> float:
    """Seconds until the next try."""
    if failures == 0:
        return EVERY_SECONDS
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 16), MOST_PAUSE_SECONDS))


def _words(problem: Problem | str | None) -> str:
    return problem.message if isinstance(problem, Problem) else problem or "it can be read"
