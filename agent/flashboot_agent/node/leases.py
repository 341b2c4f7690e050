"""Who uses an arena's memory just now, and when it may go.

Holds always: the memory is given up once and only when nobody uses it any more (a descriptor that is closed under a
writer could be another file's soon); from the moment of `shut` or `revoke` on nobody new comes in; while it is barred
nobody begins to read it. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from flashboot_agent.core.errors import ArenaInUse, ArenaUpdating, UnknownArena

CHILD_SECONDS: Final = 5.0
"""How long after its last connection a node still counts as a child."""


class Leases:
    """Of one arena. `give_up` closes its memory."""

    def __init__(self, arena: str, give_up: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._arena = arena
        self._give_up = give_up
        self._clock = clock
        self._changed = threading.Condition()
        self._users = 0
        self._reading = 0
        """Users that read the bytes: children, and this process."""
        self._barred: str | None = None
        """Why nobody may read just now."""
        self._gone = False
        self._connected: Counter[str] = Counter()
        self._left: dict[str, float] = {}

    @property
    def read(self) -> bool:
        """A child is connected."""
        with self._changed:
            return bool(self._connected)

    def children(self) -> list[str]:
        """Nodes that read from it now or did a moment ago."""
        limit = self._clock() - CHILD_SECONDS
        with self._changed:
            self._left = {child: at for child, at in self._left.items() if at >= limit}
            return sorted(self._connected.keys() | self._left.keys())[:256]

    @contextmanager
    def here(self) -> Iterator[None]:
        """It does not go during the block, which must be short. Raises UnknownArena when it is gone."""
        with self._changed:
            self._require_here()
            yield

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """This process itself works on the memory. Raises UnknownArena when it is gone."""
        with self._changed:
            self._require_here()
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._let_go()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """`pinned`, and this process reads the bytes. Raises UnknownArena, ArenaUpdating while it is barred."""
        with self._changed:
            self._begin_reading()
        try:
            yield
        finally:
            with self._changed:
                self._reading -= 1
                self._let_go()

    def enter(self, child: str) -> None:
        """A connection of the node `child` begins to read. Raises UnknownArena when it is gone, ArenaUpdating while it
        is barred."""
        with self._changed:
            self._begin_reading()
            self._connected[child] += 1

    def bar(self, why: str) -> None:
        """Nobody new reads until `unbar`; those who do go on."""
        with self._changed:
            self._barred = why

    def unbar(self) -> None:
        with self._changed:
            self._barred = None

    def wait_unread(self, seconds: float) -> None:
        """Until nobody reads it. Raises ArenaInUse, with who still does."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._reading, seconds):
                nodes = ", ".join(sorted(self._connected)) or "this agent itself"
                raise ArenaInUse(f"{self._arena} is still read by {nodes} after {seconds:.1f} s")

    def leave(self, child: str) -> None:
        with self._changed:
            self._reading -= 1
            self._connected[child] -= 1
            if not self._connected[child]:
                del self._connected[child]
            self._left[child] = self._clock()
            self._let_go()

    def shut(self) -> bool:
        """Nobody new from now on, unless a child is connected or it is updated: then False. `revoke` does the rest."""
        with self._changed:
            if self._connected or self._barred:
                return False
            self._gone = True
            return True

    def revoke(self, seconds: float) -> bool:
        """Nobody new from now on. True when all let go in time; the memory goes with the last of them."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._gone = True
            if self._users == 0:
                self._end()
            while self._users and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._users == 0

    def _begin_reading(self) -> None:
        self._require_here()
        if self._barred is not None:
            raise ArenaUpdating(self._barred)
        self._users += 1
        self._reading += 1

    def _let_go(self) -> None:
        self._users -= 1
        if self._gone and self._users == 0:
            self._end()
        self._changed.notify_all()

    def _end(self) -> None:
        self._give_up()
        self._give_up = _nothing  # it holds the arena, which holds this: both shall go at once, without the collector

    def _require_here(self) -> None:
        if self._gone:
            raise UnknownArena(f"{self._arena} was dropped here")


def _nothing() -> None:
    """What is left to give up after the memory was."""
