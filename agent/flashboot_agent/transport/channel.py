"""A stream that speaks frames: what is said before the bulk of the bytes, which `_native` carries.

Used by both ends. What always holds: no operation outlives its deadline, however slowly bytes trickle; a peer makes us
keep one frame and its announced tail at most; whatever goes wrong on the stream comes out as one of the errors of
core/errors.py, with the peer's label in the message.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from flashboot_agent._native import Stream, StreamBroken, StreamTimeout, StreamTorn, TlsContext, TlsRefused
from flashboot_agent.core.errors import DeadlineExceeded, ParentUnreachable, PeerRefused, TornFrame
from flashboot_agent.wire.frames import Frame, FrameError, FrameParser


@contextlib.contextmanager
def stream_errors() -> Iterator[None]:
    """Translate what `_native` raises about a stream."""
    try:
        yield
    except StreamBroken as error:
        raise ParentUnreachable(str(error)) from None
    except StreamTimeout as error:
        raise DeadlineExceeded(str(error)) from None
    except StreamTorn as error:
        raise TornFrame(str(error)) from None
    except TlsRefused as error:
        raise PeerRefused(str(error)) from None


class Channel:
    """Reading and writing belong to one thread at a time; `close` may come from any and wakes whoever waits."""

    def __init__(self, fd: int, label: str) -> None:
        """Takes the descriptor over. `label` is how messages call the other end."""
        try:
            self.stream = Stream(fd, label)
        except BaseException:  # it takes the descriptor over only when it succeeds
            os.close(fd)
            raise
        self._parser = FrameParser()

    @property
    def peer(self) -> str:
        return self.stream.label

    @peer.setter
    def peer(self, label: str) -> None:
        self.stream.label = label

    def start_tls(self, context: TlsContext, expected_uri: str | None, seconds: float) -> None:
        """Raises PeerRefused, DeadlineExceeded, ParentUnreachable."""
        with stream_errors():
            self.stream.start_tls(context, expected_uri, seconds)

    def recv_frame(self, seconds: float, what: str) -> Frame | None:
        """The next frame, without its tail; None when the peer ended the stream before it.

        Raises TornFrame, DeadlineExceeded, ParentUnreachable (also when the stream ends inside the frame)."""
        deadline = time.monotonic() + seconds
        while True:
            part = bytearray(self._parser.wants)
            left = max(0.0, deadline - time.monotonic())
            with stream_errors():
                got = self.stream.recv_into(part, left, left, what)
            if got == 0 and self._parser.idle:
                return None
            if got == 0:
                raise ParentUnreachable(f"{self.peer}: the stream ended in the middle of a frame, {what}")
            try:
                frame = self._parser.feed(memoryview(part))
            except FrameError as error:
                raise TornFrame(f"{self.peer}: {error}") from None
            if frame is not None:
                return frame

    def recv_tail(self, nbytes: int, seconds: float, what: str) -> bytes:
        """The next bytes, all of them."""
        tail = bytearray(nbytes)
        with stream_errors():
            got = self.stream.recv_into(tail, seconds, seconds, what) if nbytes else 0
        if got < nbytes:
            raise ParentUnreachable(f"{self.peer}: the stream ended before a tail of {nbytes} bytes, {what}")
        return bytes(tail)

    def send(self, head: bytes, tail: bytes = b"", *, silence: float, whole: float, what: str) -> None:
        """Send a frame and its tail.

        Raises DeadlineExceeded when the peer takes no byte for `silence` seconds or not all in `whole`,
        ParentUnreachable."""
        with stream_errors():
            self.stream.send(head, tail, silence, whole, what)

    def finish(self, patience: float) -> None:
        """End our direction and drop what still comes for a moment, so that the peer gets our last frame.

        Closing with unread requests in the buffer would send a reset, which can overtake that frame."""
        with contextlib.suppress(StreamBroken, StreamTimeout):
            self.stream.finish(patience)

    def close(self) -> None:
        """Idempotent, from any thread; an operation in another thread ends with ParentUnreachable."""
        self.stream.close()
