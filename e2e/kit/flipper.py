"""TCP relays that together flip one bit on the way from parents to a child, whatever the streams carry (mostly TLS)."""

from __future__ import annotations

import contextlib
import socket
import threading

from flashboot_agent.transport import address

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


class BitFlipper:
    """Listens at `address`, connects children to `target`, damages by `fault`."""

    def __init__(self, target: str, listen: str, fault: Fault) -> None:
        self._target = address.split(target)
        self._fault = fault
        self._listener = socket.create_server(address.split(listen))
        self.address = address.join(*self._listener.getsockname()[:2])
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for sock in self._sockets:
                _end(sock)
        for thread in self._threads:
            thread.join(10)
        for sock in (self._listener, *self._sockets):
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                child, _ = self._listener.accept()
            except OSError:
                return
            try:
                parent = socket.create_connection(self._target, timeout=10)
            except OSError:
                child.close()
                continue
            parent.settimeout(None)
            relays = [
                threading.Thread(target=self._relay, args=(child, parent, False), daemon=True),
                threading.Thread(target=self._relay, args=(parent, child, True), daemon=True),
            ]
            with self._lock:
                self._sockets += [child, parent]
                self._threads += relays
            for relay in relays:
                relay.start()

    def _relay(self, source: socket.socket, sink: socket.socket, towards_child: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                sink.sendall(self._fault.damaged(data, passed) if towards_child else data)
                passed += len(data)
        _end(source)
        _end(sink)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
