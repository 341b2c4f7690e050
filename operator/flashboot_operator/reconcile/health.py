"""Liveness that proves more than a running process: the loop turns, the Lease is renewed, the watches hear."""

from __future__ import annotations

import asyncio
import time

MAX_LAG_S = 5.0
MAX_WATCH_AGE_S = 180.0
"""A watch that hears nothing for 70 s is opened anew; one that has not succeeded at that for this long is a trouble."""


class LoopLag:
    """How late the event loop wakes up."""

    def __init__(self) -> None:
        self._beat = time.monotonic()
        self.worst_s = 0.0

    @property
    def lag_s(self) -> float:
        return max(0.0, time.monotonic() - self._beat - 0.25)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            self.worst_s = max(self.lag_s, self.worst_s * 0.99)
            self._beat = time.monotonic()
