"""A TCP relay between child and parent: what to do with the bytes of either direction is its subclasses' matter.

For tests, here and end to end. `close` ends everything that was begun.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod

from flashboot_agent.transport import address


class Relay(ABC):
    """Listens at `address` and connects each child to `target`; two threads for each connection.

    A subclass sets its own attributes before it calls `__init__`, which starts to listen."""

    def __init__(self, target: str, *, listen: str) -> None:
        self._target = address.split(target)
        self._listener = socket.create_server(address.split(listen))
        self.address = address.join(*self._listener.getsockname()[:2])
        self.connections = 0
        self._lock = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @abstractmethod
    def up(self, child: socket.socket, parent: socket.socket) -> None:
        """Pass on what the child says, until one of them ends."""

    @abstractmethod
    def down(self, child: socket.socket, parent: socket.socket) -> None:
        """Pass on what the parent says, until one of them ends."""

    def cut(self) -> None:
        """Reset all connections now."""
        with self._lock:
            for sock in self._sockets:
                reset(sock)
            self._sockets.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                child, _ = self._listener.accept()
            except OSError:
                return
            try:
                parent = socket.create_connection(self._target, timeout=10)
            except OSError:
                reset(child)
                continue
            for sock in (child, parent):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pumps = [threading.Thread(target=pump, args=(child, parent), daemon=True) for pump in (self.up, self.down)]
            with self._lock:
                self.connections += 1
                self._sockets += [child, parent]
                self._threads += pumps
            for pump in pumps:
                pump.start()


def finish(sock: socket.socket) -> None:
    """End our direction."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def reset(sock: socket.socket) -> None:
    """End it in both directions; wakes the other pump."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
