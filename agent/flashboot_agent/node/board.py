"""The board: one counter that rises with every change of what this node observes, and everybody who waits for it.

Threads post, the event loop's side waits. A change of a watermark alone is *soft*: it wakes pollers at most every
SOFT_SECONDS, so that a clone at full speed does not make a storm of long polls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

SOFT_SECONDS: Final = 0.25
"""Often enough that the operator sees within a second who is slow; four polls a second and node while bytes flow."""


class Board:
    """Bound to the running event loop by `bind`; posts before that are counted."""

    def __init__(self) -> None:
        self.counter = 1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._soft_pending = False

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._soft_pending = False

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` on the loop after every hard change."""
        self._listeners.append(listener)

    def changed(self) -> None:
        """Something changed. From any thread."""
        self._on_loop(self._publish)

    def moved(self) -> None:
        """A watermark rose. From any thread, often."""
        if self._soft_pending:
            return
        with self._lock:
            if self._soft_pending:
                return
            self._soft_pending = True
        self._on_loop(self._schedule_soft)

    async def wait(self, after: int, seconds: float) -> int:
        """The counter, as soon as it is above `after`, or whatever it is after `seconds`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.counter <= after and (left := deadline - loop.time()) > 0:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=left)
            finally:
                self._waiters.discard(waiter)
        return self.counter

    def _on_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            self.counter += 1
        elif not loop.is_closed():
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:  # closed since: the process ends, nobody listens any more
                return

    def _publish(self) -> None:
        self._wake()
        for listener in self._listeners:
            listener()

    def _schedule_soft(self) -> None:
        assert self._loop is not None
        self._loop.call_later(SOFT_SECONDS, self._publish_soft)

    def _publish_soft(self) -> None:
        self._soft_pending = False
        self._wake()

    def _wake(self) -> None:
        self.counter += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
