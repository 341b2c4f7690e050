"""TCP relays that together flip one bit on the way from parents to a child, whatever the streams carry (mostly TLS)."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.component.relay import Relay, finish

PIECE = 1 << 16


class Fault:
    """The lowest bit of byte `offset` of the first stream that gets so far is changed, once over all relays."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._lock = threading.Lock()
        self.happened = False

    def damaged(self, data: bytes, passed: int) -> bytes:
        with self._lock:
            if self.happened or not passed <= self._offset < passed + len(data):
                return data
            self.happened = True
        changed = bytearray(data)
        changed[self._offset - passed] ^= 1
        return bytes(changed)


class BitFlipper(Relay):
    """Damages by `fault`."""

    def __init__(self, target: str, listen: str, fault: Fault) -> None:
        self._fault = fault
        super().__init__(target, listen=listen)

    def up(self, child: socket.socket, parent: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := child.recv(PIECE):
                parent.sendall(data)
        finish(parent)

    def down(self, child: socket.socket, parent: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := parent.recv(PIECE):
                child.sendall(self._fault.damaged(data, passed))
                passed += len(data)
        finish(child)
