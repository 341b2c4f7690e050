"""Work beside the rounds, as tasks of the agent's loop that nobody waits for: a fault in one is told, never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from flashboot_agent.logs import Log

log = Log(__name__)


class Background:
    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        """Those that are under way; the loop itself keeps no strong reference."""

    def start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(_report)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background work failed", exc_info=error)
