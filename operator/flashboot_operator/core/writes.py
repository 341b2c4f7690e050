"""A budget of writes over all objects: so many a second, and after a pause a few at once. Pure: the caller has a clock.

Who gets no write now gets a turn: a time at which the write is his. So nobody asks again and again, and whoever comes
first is served first. A turn that is not taken within a second is lost.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
LATE_S = 1.0


class WriteBudget(Generic[K]):
    def __init__(self, per_second: float, burst: int) -> None:
        self._gap = 1.0 / per_second
        self._slack = (burst - 1) * self._gap
        self._next = 0.0
        """When the next write would be due if there were no slack."""
        self._turns: dict[K, float] = {}

    def take(self, key: K, now: float) -> float:
        """0: write now. Else: ask again after so many seconds, the turn is kept."""
        turn = self._turns.get(key)
        if turn is not None and now - turn <= LATE_S:
            if now < turn:
                return turn - now
            del self._turns[key]
            return 0.0
        self._turns.pop(key, None)
        self._next = max(self._next, now) + self._gap
        turn = self._next - self._gap - self._slack
        if turn <= now:
            return 0.0
        self._turns[key] = turn
        return turn - now

    def forget(self, key: K) -> None:
        self._turns.pop(key, None)
