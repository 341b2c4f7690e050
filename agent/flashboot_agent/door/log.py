"""The door's log: one JSON line per event on stdout, written at once, since the door may be killed at any time."""

from __future__ import annotations

import json
import os

from flashboot_agent.wire.base import now


def log(level: str, event: str, **facts: object) -> None:
    """`event` is constant text; what varies goes into `facts`."""
    line = {
        "time": now().isoformat(timespec="milliseconds"),
        "level": level,
        "part": "door",
        "node": os.environ.get("FLASHBOOT_NODE_NAME", ""),
        "event": event,
        **facts,
    }
    print(json.dumps(line, default=str), flush=True)
