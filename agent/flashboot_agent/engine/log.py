"""How the plug-in speaks in the engine's log: a logger, and patience that speaks at once, on a change, and seldom."""

from __future__ import annotations

import logging
import time
from typing import Final

log: Final = logging.getLogger("flashboot")

EVERY_SECONDS: Final = 30.0


class Patient:
    """Logs what a wait is for: the first time, when the reason changes (at most once a second), and every 30 s."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = time.monotonic()
        self._said_at = float("-inf")
        self._said = ""

    def say(self, reason: str) -> None:
        now = time.monotonic()
        wait = 1.0 if reason != self._said else EVERY_SECONDS
        if now - self._said_at < wait:
            return
        self._said_at, self._said = now, reason
        # warning, because before SGLang has set up its logging nothing lower is shown
        log.warning("%s since %.0f s: %s", self._what, now - self._since, reason)
