"""Pulls to their end, and pulls in a thread of their own: what tests of every transport do with a connection."""

from __future__ import annotations

import threading
from dataclasses import replace

from flashboot_agent._native import MarksClosed
from flashboot_agent.core.errors import FlashBootError
from flashboot_agent.transport.base import Progress, Pull, Sink
from tests.component.agents import eventually
from tests.component.memory_catalog import Target


def pull_all(pull: Pull, target: Target, lane: int = 0) -> list[Progress]:
    """Until done."""
    steps: list[Progress] = []
    sink = target.sink(pull, lane)
    while not steps or steps[-1].state != "done":
        steps.append(pull.advance(sink, 5))
        assert len(steps) < 100, steps[-1]
    return steps


def patient(sink: Sink) -> Sink:
    """With the patience that a lane has after some deadlines on a busy node: none of these tests is about time."""
    return replace(sink, patience=16.0)


class Pulling(threading.Thread):
    """A lane that is pulled in a thread of its own, so that the test can act meanwhile."""

    def __init__(self, pull: Pull, target: Target, lane: int = 0) -> None:
        super().__init__(daemon=True)
        self.target, self.lane = target, lane
        self.starved = 0
        """Looks at which the parent had nothing for us."""
        self.failure: FlashBootError | MarksClosed | None = None
        self._pull = pull
        self.start()

    def run(self) -> None:
        sink = patient(self.target.sink(self._pull, self.lane))
        try:
            while (step := self._pull.advance(sink, 0.05)).state == "going":
                self.starved += step.starved
        except (FlashBootError, MarksClosed) as error:
            self.failure = error

    def until(self, verified: int) -> None:
        eventually(lambda: self.target.marks.verified(self.lane) >= verified or None, f"{verified} bytes verified")

    def end(self) -> None:
        self.join(30)
        assert not self.is_alive(), f"the pull hangs at byte {self.target.marks.received(self.lane)}"
