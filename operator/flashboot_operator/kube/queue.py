"""A work queue of keys: one worker at a time per key, marks while it waits fall together, failures back off.

There is no hot loop. Between two runs of one key lie at least `min_interval_s`, or `urgent_interval_s` for an urgent
mark, and as long as the run took: no key has more than half of the time. Between two failures of one key lies the
back-off, which doubles up to `max_backoff_s`, or what the failure itself asks for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
MOST_PAUSE_S = 1.0
"""After a run that took long, as one that waited for an answer."""


class WorkQueue(Generic[K]):
    """`work(key)` raises to be called again later."""

    def __init__(
        self,
        work: Callable[[K], Awaitable[None]],
        *,
        workers: int = 8,
        min_interval_s: float = 0.1,
        urgent_interval_s: float | None = None,
        base_backoff_s: float = 0.25,
        max_backoff_s: float = 30.0,
        on_run: Callable[[float, float, bool], None] = lambda *_: None,
    ) -> None:
        """`urgent_interval_s`: None: as the other. `on_run(wait_s, work_s, failed)`: after each run; the wait is from
        when it was due."""
        self._work = work
        self._slots = asyncio.Semaphore(workers)
        self._min_interval_s = min_interval_s
        self._urgent_interval_s = min_interval_s if urgent_interval_s is None else urgent_interval_s
        self._base_backoff_s = base_backoff_s
        self._max_backoff_s = max_backoff_s
        self._due: dict[K, float] = {}
        self._running: dict[K, asyncio.Task[None]] = {}
        self._last: dict[K, tuple[float, float]] = {}
        """When the last run ended, and how long it took."""
        self._urgent: set[K] = set()
        """Of those that are due."""
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        """Of keys whose last run failed."""
        self._asked: dict[K, float] = {}
        """When the run that is due was asked for; for `on_run`."""
        self._on_run = on_run
        self._wake = asyncio.Event()

    def mark(self, key: K, after_s: float = 0.0, *, urgent: bool = False) -> None:
        """Have the key worked on, `after_s` from now at the latest, unless it backs off or was just worked on."""
        now = time.monotonic()
        due = max(now + after_s, self._rested(key, urgent), self._not_before.get(key, 0.0))
        self._due[key] = min(self._due.get(key, due), due)
        self._asked[key] = min(self._asked.get(key, now + after_s), now + after_s)
        if urgent:
            self._urgent.add(key)
        self._wake.set()

    def _rested(self, key: K, urgent: bool) -> float:
        """Until when the key has its pause after the last run."""
        ended, took = self._last.get(key, (0.0, 0.0))
        pause = self._urgent_interval_s if urgent else self._min_interval_s
        return ended + max(pause, min(took, MOST_PAUSE_S))

    def is_due(self, key: K) -> bool:
        """Whether it is worked on, or is to be because of something that has happened."""
        return key in self._running or self._asked.get(key, math.inf) <= time.monotonic()

    def _backoff(self, key: K) -> float:
        failures = self._failures.get(key, 0)
        return min(self._max_backoff_s, self._base_backoff_s * 2 ** min(failures - 1, 16)) if failures else 0.0

    def __len__(self) -> int:
        return len(self._due) + len(self._running)

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                now = time.monotonic()
                ready = [k for k, due in self._due.items() if due <= now and k not in self._running]
                for key in ready:
                    del self._due[key]
                    self._urgent.discard(key)
                    self._running[key] = asyncio.create_task(self._one(key, self._asked.pop(key, now)))
                later = [due for k, due in self._due.items() if k not in self._running]
                wait = min(later) - time.monotonic() if later else None
                try:
                    async with asyncio.timeout(None if wait is None else max(wait, 0.0)):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, key: K, asked: float) -> None:
        async with self._slots:
            began = time.monotonic()
            retry: float | None = None
            try:
                await self._work(key)
                self._failures.pop(key, None)
                self._not_before.pop(key, None)
            except Exception as error:  # Whatever it was: it is told, and tried again, later and later.
                self._failures[key] = self._failures.get(key, 0) + 1
                retry = max(self._backoff(key), getattr(error, "retry_after", None) or 0.0)
                expected = hasattr(error, "retry_after")
                log.warning(
                    "reconcile failed: %s",
                    error,
                    exc_info=None if expected else error,
                    extra={"key": str(key), "failures": self._failures[key], "retryInSeconds": round(retry, 2)},
                )
            finally:
                now = time.monotonic()
                self._on_run(began - asked, now - began, retry is not None)
                self._last[key] = now, now - began
                if retry is not None:
                    self._not_before[key] = now + retry
                if key in self._due:  # Marked meanwhile: the pause counts from now.
                    self._due[key] = max(
                        self._due[key], self._rested(key, key in self._urgent), self._not_before.get(key, 0.0)
                    )
                self._running.pop(key, None)
                self._wake.set()
            if retry is not None:
                self.mark(key, after_s=retry)

    def forget(self, key: K) -> None:
        """Drop what is remembered about a key that is gone."""
        self._failures.pop(key, None)
        self._not_before.pop(key, None)
        past = time.monotonic() - 60
        for old in [k for k, (ended, _) in self._last.items() if ended < past]:
            del self._last[old]
