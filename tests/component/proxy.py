"""A TCP proxy that understands chunk frames and can damage, stall or cut the way from parent to child.

For tests of plain streams; under TLS a flipped bit ends the connection before anybody sees it (e2e/kit/flipper.py).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

from flashboot_agent.wire import frames
from tests.component.relay import Relay, finish, reset

Fault = Literal["flip", "stall", "cut", "cut_in_header"]


class ChunkProxy(Relay):
    """Faults hit the arena's byte at a given offset, once.

    flip: that byte arrives with its lowest bit changed. stall: nothing from that byte on arrives, on that connection,
    until `resume`. cut: the stream to the child ends right before that byte, the parent's is reset. cut_in_header: the
    same, inside the frame header that comes before it."""

    def __init__(self, target: str, *, listen: str = "127.0.0.1:0") -> None:
        self._faults: dict[int, Fault] = {}
        self.happened: list[tuple[str, int]] = []
        self.pulls_unanswered = 0
        self.most_unanswered = 0
        """The most requests that were in flight at a time."""
        self._resumed = threading.Event()
        super().__init__(target, listen=listen)

    def inject(self, fault: Fault, offset: int) -> None:
        with self._lock:
            self._faults[offset] = fault

    def resume(self) -> None:
        self._resumed.set()

    def wait_for(self, fault: Fault, seconds: float = 20) -> None:
        with self._lock:
            ok = self._lock.wait_for(lambda: any(kind == fault for kind, _ in self.happened), seconds)
        assert ok, f"no {fault} within {seconds} s; happened: {self.happened}"

    def close(self) -> None:
        self.resume()
        super().close()

    def up(self, child: socket.socket, parent: socket.socket) -> None:
        parser = frames.FrameParser()
        with contextlib.suppress(OSError):
            while data := child.recv(parser.wants):
                frame = parser.feed(data)
                if isinstance(frame, frames.Pull):
                    with self._lock:
                        self.pulls_unanswered += 1
                        self.most_unanswered = max(self.most_unanswered, self.pulls_unanswered)
                parent.sendall(data)
        finish(parent)

    def down(self, child: socket.socket, parent: socket.socket) -> None:
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
        finish(child)

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
            finish(child)  # a reset would throw away what the child has not read yet, before that byte
            reset(parent)
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
