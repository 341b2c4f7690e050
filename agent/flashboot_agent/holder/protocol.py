"""Agent ↔ holder: one request per connection, one JSON packet each way, memory as file descriptors beside it.

    {"op": "create", "arena", "bytes", "pages"}     → {"bytes"} + [data, record]     once all pages are present
    {"op": "get", "arena"}                          → {"bytes"} + [data, record]
    {"op": "put", "arena", "bytes"} + [data, record]→ {}          the agent's duplicates, after the holder restarted
    {"op": "drop", "arena"}                         → {"dropped": bool}
    {"op": "list", "after"}                         → {"arenas": {arena: bytes}, "more": bool}
    {"op": "stats"}                                 → {"instance", "budget_bytes", "used_bytes", "arenas"}

An error is {"error": kind, "message"}. Closing the connection during a create undoes it.
"""

from __future__ import annotations

import re
from typing import Any, Final

RUN: Final = "/run/flashboot"
SOCKET: Final = "holder/holder.sock"
"""The same as wire/door.py's, repeated so that the holder needs no pydantic; a test compares them."""

MAX_PACKET: Final = 65536
PAGE: Final = 256
"""Arenas per answer to `list`."""

RECORD_BYTES: Final = 256 << 20
"""Size of a record memfd: sparse, only what the agent writes takes memory."""

ARENA: Final = re.compile(r"arena-[0-9a-f]{32}")

BAD_REQUEST: Final = "BadRequest"
UNKNOWN: Final = "UnknownArena"
EXISTS: Final = "Exists"
NO_MEMORY: Final = "InsufficientMemory"

Message = dict[str, Any]
