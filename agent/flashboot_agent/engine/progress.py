"""How long an arena may take to come: until its first byte, and between two bytes. Pure, but for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from flashboot_agent.core.errors import CloneFailed, DeadlineExceeded
from flashboot_agent.engine.messages import Coming


class Progress:
    """Of one wait, which begins now."""

    def __init__(
        self, who: str, arena_seconds: float, stall_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """arena_seconds: for the first byte, and for leave to use what came; stall_seconds: for each byte after it."""
        self._who = who
        self._arena_seconds = arena_seconds
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._begun = self._moved_at = clock()
        self._watermark = 0

    @property
    def overdue(self) -> bool:
        """The time for the first byte is over."""
        return self._clock() > self._begun + self._arena_seconds

    def heard(self, message: Coming) -> None:
        """Raises DeadlineExceeded, CloneFailed when this word says what the last one said, for too long."""
        now = self._clock()
        if message.watermark != self._watermark:  # less than before: another arena, or one that begins anew
            self._moved_at, self._watermark = now, message.watermark
        under_way = 0 < self._watermark < message.bytes
        if not under_way and self.overdue:
            what = (
                f"{self._watermark} bytes of the arena came, but no leave to use them"
                if self._watermark
                else "no byte of the arena"
            )
            raise DeadlineExceeded(f"{self._who}: {what} within {self._arena_seconds:.0f} s; last word: {message.note}")
        if under_way and now > self._moved_at + self._stall_seconds:
            raise CloneFailed(
                f"{self._who}: the clone has stood at {self._watermark} of {message.bytes} bytes for "
                f"{self._stall_seconds:.0f} s (cloneTimeoutSeconds); last word: {message.note}"
            )
