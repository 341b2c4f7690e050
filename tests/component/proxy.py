"""A TCP proxy that understands chunk frames and can damage, stall or cut the way from parent to child.

For tests of plain streams; under TLS a flipped bit ends the connection before anybody sees it (e2e/kit/flipper.py).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

from flashboot_agent.transport import address
from flashboot_agent.wire import frames

Fault = Literal["flip", "stall", "cut", "cut_in_header"]


class ChunkProxy:
    """Listens at `address` and connects each child to `target`. Faults hit the arena's byte at a given offset, once.

    flip: that byte arrives with its lowest bit changed. stall: nothing from that byte on arrives, on that connection,
    until `resume`. cut: the stream to the child ends right before that byte, the parent's is reset. cut_in_header: the
    same, inside the frame header that comes before it."""

    def __init__(self, target: str, *, listen: str = "127.0.0.1:0") -> None:
        self._target = address.split(target)
        self._listener = socket.create_server(address.split(listen))
        host, port = self._listener.getsockname()[:2]
        self.address = address.join(host, port)
        self._lock = threading.Condition()
        self._faults: dict[int, Fault] = {}
        self.happened: list[tuple[str, int]] = []
        self.pulls_unanswered = 0
        self.most_unanswered = 0
        """The most requests that were in flight at a time."""
        self.connections = 0
        self._resumed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def inject(self, fault: Fault, offset: int) -> None:
        with self._lock:
            self._faults[offset] = fault

    def resume(self) -> None:
        self._resumed.set()

    def wait_for(self, fault: Fault, seconds: float = 20) -> None:
        with self._lock:
            ok = self._lock.wait_for(lambda: any(kind == fault for kind, _ in self.happened), seconds)
        assert ok, f"no {fault} within {seconds} s; happened: {self.happened}"

    def cut(self) -> None:
        """Reset all connections now."""
        with self._lock:
            for sock in self._sockets:
                _reset(sock)
            self._sockets.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.resume()
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
                _reset(child)
                continue
            for sock in (child, parent):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pumps = [
                threading.Thread(target=pump, args=(child, parent), daemon=True) for pump in (self._up, self._down)
            ]
            with self._lock:
                self.connections += 1
                self._sockets += [child, parent]
                self._threads += pumps
            for pump in pumps:
                pump.start()

    def _up(self, child: socket.socket, parent: socket.socket) -> None:
        parser = frames.FrameParser()
        with contextlib.suppress(OSError):
            while data := child.recv(parser.wants):
                frame = parser.feed(data)
                if isinstance(frame, frames.Pull):
                    with self._lock:
                        self.pulls_unanswered += 1
                        self.most_unanswered = max(self.most_unanswered, self.pulls_unanswered)
                parent.sendall(data)
        _finish(parent)

    def _down(self, child: socket.socket, parent: socket.socket) -> None:
        parser, head = frames.FrameParser(), bytearray()
        with contextlib.suppress(OSError):
            while data := parent.recv(parser.wants):
                head += data  # held back until the frame is known, so that a cut can fall inside it
                frame = parser.feed(data)
                if frame is None:
                    continue
                if isinstance(frame, frames.Data):
                    with self._lock:
                        self.pulls_unanswered -= 1
                    if not self._pass_data(child, parent, bytes(head), frame):
                        return
                else:
                    child.sendall(head)
                    if isinstance(frame, frames.MetaReply):
                        self._pass(child, parent, frame.digests_bytes + frame.layout_bytes)
                head.clear()
        _finish(child)

    def _pass_data(self, child: socket.socket, parent: socket.socket, head: bytes, data: frames.Data) -> bool:
        """Returns whether the connection goes on."""
        hit = self._take_fault(data)
        if hit is None:
            child.sendall(head)
            self._pass(child, parent, data.length)
            return True
        fault, offset = hit
        if fault == "cut_in_header":
            child.sendall(head[: len(head) // 2])
        else:
            child.sendall(head)
            self._pass(child, parent, offset - data.offset)
        self._report(fault, offset)
        if fault in ("cut", "cut_in_header"):
            _finish(child)  # a reset would throw away what the child has not read yet, before that byte
            _reset(parent)
            return False
        if fault == "stall":
            self._resumed.wait(60)
            done = offset
        else:
            child.sendall(bytes([parent.recv(1)[0] ^ 1]))
            done = offset + 1
        self._pass(child, parent, data.offset + data.length - done)
        return True

    def _take_fault(self, data: frames.Data) -> tuple[Fault, int] | None:
        with self._lock:
            for offset in sorted(self._faults):
                if data.offset <= offset < data.offset + data.length:
                    return self._faults.pop(offset), offset
        return None

    def _report(self, fault: Fault, offset: int) -> None:
        with self._lock:
            self.happened.append((fault, offset))
            self._lock.notify_all()

    @staticmethod
    def _pass(child: socket.socket, parent: socket.socket, nbytes: int) -> None:
        while nbytes:
            data = parent.recv(min(nbytes, 1 << 18))
            if not data:
                raise ConnectionError("the parent ended")
            child.sendall(data)
            nbytes -= len(data)


def _finish(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def _reset(sock: socket.socket) -> None:
    """End it in both directions; wakes the other pump."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
