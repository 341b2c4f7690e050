"""A connected socket that speaks frames, with a deadline on everything.

Used by both ends. What always holds: no operation outlives its deadline, however slowly bytes trickle; bytes of a tail
go from the kernel straight into the caller's memory and the other way round; `close` may come from any thread, wakes
whoever waits, and the descriptor's number is given back only when nobody uses it any more.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

from flashboot_agent.core.errors import DeadlineExceeded, ParentUnreachable, TornFrame
from flashboot_agent.wire.frames import Frame, FrameError, FrameParser


class Channel:
    """`peer` is how messages call the other end. Reading and writing each belong to one thread at a time."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Buffer sizes stay with the kernel's autotuning (up to 4 and 6 MB by default): asking for a size would switch
        # it off and cap the buffers at net.core.rmem_max and wmem_max, 208 KiB by default.
        self.peer = peer
        self._sock = sock
        self._parser = FrameParser()
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Idempotent, from any thread; an operation in another thread ends with ParentUnreachable."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):  # ENOTCONN: the peer was faster
                self._sock.shutdown(socket.SHUT_RDWR)
            if self._users == 0:
                self._sock.close()

    @contextlib.contextmanager
    def _using(self, what: str) -> Iterator[None]:
        """Keep the descriptor for one operation and translate how it may fail."""
        with self._lock:
            if self._closed:
                raise ParentUnreachable(f"{self.peer}: the connection was closed on our side")
            self._users += 1
        try:
            yield
        except TimeoutError:
            raise DeadlineExceeded(f"{self.peer}: {what} did not end in time") from None
        except OSError as error:
            raise ParentUnreachable(f"{self.peer}: the connection broke while {what}: {error}") from error
        finally:
            with self._lock:
                self._users -= 1
                if self._closed and self._users == 0:
                    self._sock.close()

    def _recv(self, view: memoryview, silence: float, deadline: float, what: str) -> int:
        """At least one byte, or 0 at the end of the stream; `silence` in seconds, `deadline` on the monotonic clock."""
        with self._using(what):
            self._sock.settimeout(_left(silence, deadline))
            got = self._sock.recv_into(view)
        if got == 0 and self._closed:
            raise ParentUnreachable(f"{self.peer}: the connection was closed on our side")
        return got

    def recv_frame(self, *, first: float, whole: float, what: str) -> Frame | None:
        """The next frame, without its tail; None when the peer ended the stream between two frames.

        Args:
            first: seconds until the first byte must be there.
            whole: seconds from the first byte on until the frame must be complete.
            what: what it waits for, for the message.

        Raises TornFrame, DeadlineExceeded, ParentUnreachable (also when the stream ends inside a frame)."""
        began = self._parser.idle
        deadline = time.monotonic() + (first if began else whole)
        small = bytearray(64)
        while True:
            with memoryview(small if self._parser.wants <= 64 else bytearray(self._parser.wants)) as space:
                got = self._recv(space[: self._parser.wants], whole, deadline, what)
                if got == 0 and self._parser.idle:
                    return None
                if got == 0:
                    raise ParentUnreachable(f"{self.peer}: the stream ended in the middle of a frame, {what}")
                if began:
                    began, deadline = False, time.monotonic() + whole
                try:
                    frame = self._parser.feed(space[:got])
                except FrameError as error:
                    raise TornFrame(f"{self.peer}: {error}") from None
            if frame is not None:
                return frame

    def recv_into(self, view: memoryview, *, silence: float, whole: float, what: str) -> None:
        """Fill `view` with the next bytes of a tail.

        Raises DeadlineExceeded after `silence` seconds without a byte or `whole` seconds in all, ParentUnreachable."""
        deadline = time.monotonic() + whole
        got = 0
        while got < len(view):
            with view[got:] as rest:
                count = self._recv(rest, silence, deadline, what)
            if count == 0:
                raise ParentUnreachable(f"{self.peer}: the stream ended after {got} of {len(view)} bytes, {what}")
            got += count

    def skip(self, nbytes: int, *, silence: float, whole: float, what: str) -> None:
        """Throw away the next bytes of a tail."""
        scratch = memoryview(bytearray(min(nbytes, 1 << 18)))
        deadline = time.monotonic() + whole
        while nbytes:
            part = scratch[: min(nbytes, len(scratch))]
            self.recv_into(part, silence=silence, whole=max(0.0, deadline - time.monotonic()), what=what)
            nbytes -= len(part)

    def send(self, head: bytes, tail: memoryview | bytes = b"", *, silence: float, whole: float, what: str) -> None:
        """Send a frame and its tail, the tail without a copy of ours.

        Raises DeadlineExceeded when the peer takes no byte for `silence` seconds or not all in `whole`."""
        deadline = time.monotonic() + whole
        with memoryview(head) as first, memoryview(tail) as second:
            sent, total = 0, len(first) + len(second)
            while sent < total:
                with first[sent:] as a, second[max(0, sent - len(first)) :] as b, self._using(what):
                    self._sock.settimeout(_left(silence, deadline))
                    sent += self._sock.sendmsg([a, b])

    def peer_is_gone(self) -> bool:
        """Whether the peer has ended or reset the connection, as far as is known without waiting.

        It looks past requests that wait unread in the buffer, which a peek would stop at."""
        try:
            with self._using("looking whether the peer is there"):
                watch = select.poll()
                watch.register(self._sock, select.POLLRDHUP)
                return bool(watch.poll(0))
        except ParentUnreachable:
            return True

    def finish(self, patience: float) -> None:
        """End our direction and read what still comes for a moment, so that the peer gets our last frame.

        Closing with unread requests in the buffer would send a reset, which can overtake that frame."""
        deadline = time.monotonic() + patience
        scratch = memoryview(bytearray(4096))
        with contextlib.suppress(ParentUnreachable, DeadlineExceeded):
            with self._using("ending the connection"):
                self._sock.shutdown(socket.SHUT_WR)
            while self._recv(scratch, patience, deadline, "ending the connection"):
                pass
        self.close()


def _left(silence: float, deadline: float) -> float:
    """Seconds that one system call may take; a peer that trickles bytes does not push the deadline."""
    left = min(silence, deadline - time.monotonic())
    if left <= 0:
        raise TimeoutError
    return left
