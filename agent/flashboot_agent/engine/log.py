"""How the plug-in speaks in the engine's log: a logger, and patience that speaks at once, on a change, and seldom."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from flashboot_agent.wire.place import Place

log: Final = logging.getLogger("flashboot")

EVERY_SECONDS: Final = 30.0


def speaker(place: Place, path: str) -> str:
    """Who speaks: pod, rank and the pod's socket."""
    return f"pod {os.environ.get('POD_NAME') or socket.gethostname()}, rank {place}, {path}"


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
