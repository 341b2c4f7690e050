"""The pause of the engines that have an arena while its bytes change: the seam.

    all are asked → each has acknowledged → the bytes change → all are resumed, whatever happened

Holds always: no byte changes before every engine has acknowledged; each that was asked is resumed once. An engine
acknowledges when no forward pass of it reads the weights any more: a flag alone is no barrier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol


class Engine(Protocol):
    """One rank's engine process that maps an arena. `str()` names its pod and rank."""

    def pause(self) -> None:
        """Ask it to pause; does not wait. Raises FlashBootError when it can't be asked."""

    def wait_paused(self, seconds: float) -> None:
        """Until it has acknowledged. Raises DeadlineExceeded, with its name."""

    def resume(self) -> None:
        """It goes on, with the bytes that are there now. Also for one that has not acknowledged, or has ended."""


class Engines(Protocol):
    """Who maps an arena on this node."""

    def using(self, arena: str) -> Sequence[Engine]:
        """On the loop, in one step with the bar: nobody new gets the arena after it. Raises ArenaInUse, with the names
        of those that can't be paused."""


@contextmanager
def paused(engines: Sequence[Engine], seconds: float) -> Iterator[None]:
    """All of them, acknowledged within `seconds` together; at the end all go on, also when this raises.

    Raises what Engine raises; nothing may have been written then."""
    until = time.monotonic() + seconds
    with ExitStack() as resumed:
        for engine in engines:
            resumed.callback(engine.resume)
            engine.pause()
        for engine in engines:
            engine.wait_paused(max(0.0, until - time.monotonic()))
        yield
