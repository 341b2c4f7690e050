"""A delta that is used while it is received: a thread fills its spool, and its bodies are given as they are verified.

Holds always: what is given was published; the bodies of the last chunk are given only when the whole file was right,
the trailer too, so that nothing is complete before that. Every wait ends when receiving does, which has a deadline.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from flashboot_agent.core.errors import DeadlineExceeded, DeltaDamaged
from flashboot_agent.delta.disk import room_in
from flashboot_agent.delta.document import Contents, Header
from flashboot_agent.delta.file import Delta
from flashboot_agent.sync.spool import Spool

_SLACK: Final = 30.0
"""Seconds for a name to be looked up, or a disk to write, beyond the deadline."""
_LOOK_SECONDS: Final = 1.0


class Incoming:
    """Bodies (delta/spans.py); a context manager, for its thread. `arrived()` is the spool's `moved`."""

    def __init__(self, seconds: float, look: Callable[[], None] = lambda: None) -> None:
        """`seconds`: the deadline of what receives. `look`: called each second by who waits; what it raises ends the
        wait."""
        self._seconds, self._look = seconds, look
        self._state = threading.Condition()
        self._error: BaseException | None = None
        self._ended = False

    def arrived(self) -> None:
        with self._state:
            self._state.notify_all()

    def start(self, spool: Spool, run: Callable[[], None], cancel: Callable[[], None]) -> None:
        """`run` fills the spool, `cancel` makes it end."""
        self._spool, self._cancel = spool, cancel
        self._thread = threading.Thread(target=self._receive, args=(run,), name="flashboot-receive", daemon=True)
        self._thread.start()

    def delta(self) -> Delta:
        """When its front is here. Raises what receiving raises."""
        self._wait(lambda: self._spool.contents is not None)
        header, contents = self._front()
        return Delta(
            path=self._spool.path,
            header=header,
            contents=contents,
            front_digest=self._spool.step.front_digest,
            signer="as its chain says",
            offsets=contents.offsets(),
            source=self,
        )

    def read(self, begin: int, end: int) -> bytes:
        header, _ = self._front()
        upto = self._spool.step.nbytes if end == header.body_bytes else header.bodies_at + end
        self._wait(lambda: self._spool.verified >= upto)
        data = os.pread(self._spool.fd, end - begin, header.bodies_at + begin)
        if len(data) < end - begin:
            raise DeltaDamaged(f"{self._spool.path} was cut while it was read")
        return data

    def require_whole(self) -> None:
        self._wait(lambda: self._spool.whole)

    def _front(self) -> tuple[Header, Contents]:
        assert self._spool.header
        assert self._spool.contents
        return self._spool.header, self._spool.contents

    def _receive(self, run: Callable[[], None]) -> None:
        try:
            with room_in(self._spool.path.parent, self._spool.name):
                run()
        except BaseException as error:  # noqa: BLE001 - whatever it was: it is raised where somebody waits
            self._error = error
        finally:
            with self._state:
                self._ended = True
                self._state.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        until = time.monotonic() + self._seconds + _SLACK
        while time.monotonic() < until:
            with self._state:
                if self._state.wait_for(lambda: ready() or self._ended, _LOOK_SECONDS):
                    break
            self._look()
        if not ready():
            raise self._error or DeadlineExceeded(f"{self._spool.name} is not here after {self._seconds:g} s")

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        self._cancel()
        self._thread.join(self._seconds + _SLACK)
        if self._thread.is_alive():
            raise DeadlineExceeded(f"{self._spool.name}: receiving does not end")
