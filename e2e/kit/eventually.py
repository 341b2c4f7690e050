"""Wait for a condition, with a deadline and a message that says what it waited for and what was there instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kit.errors import DeadlineExceeded

T = TypeVar("T")


class NotYet(Exception):
    """Raised by a probe: not true yet, and why. Anything else that a probe raises ends the wait at once."""


def eventually(probe: Callable[[], T], what: str, seconds: float, every: float = 0.25) -> T:
    """The first value that `probe` returns without raising NotYet.

    Raises:
        DeadlineExceeded: names `what`, the seconds, and the last reason that the probe gave.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return probe()
        except NotYet as reason:
            if time.monotonic() >= end:
                raise DeadlineExceeded(f"waited {seconds:.0f} s for {what}; last: {reason}") from reason
        time.sleep(every)
