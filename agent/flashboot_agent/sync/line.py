"""The connection of one request, which another thread can break at any moment.

A server that sends its headers a byte at a time keeps within each timeout of a single read, and would be waited for
as long as it likes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any, Final

FRESH: Final = {"connection": "close"}
"""With these headers a request has a connection of its own, which is told when it is made."""
_MADE: Final = {"connection.connect_tcp.complete", "connection.start_tls.complete"}


class Line:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket | None = None
        self._broken = False

    @property
    def extensions(self) -> dict[str, Any]:
        """For a request of httpx."""
        return {"trace": self._trace}

    def cut(self) -> None:
        """Whoever reads from it, or will, gets an error soon."""
        with self._lock:
            self._broken = True
            self._shut()

    def _trace(self, name: str, info: Mapping[str, Any]) -> None:
        if name in _MADE:
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self._broken:
                    self._shut()

    def _shut(self) -> None:
        if self._socket:
            with suppress(OSError):  # it is closed already
                self._socket.shutdown(SHUT_RDWR)
