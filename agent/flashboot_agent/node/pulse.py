"""The pulse: bytes are moved and counted in C++, which tells nobody; this looks at the marks and tells the board."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from flashboot_agent.node.board import Board
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.wire.arena import ArenaState

PULSE_SECONDS: Final = 0.1
"""How late a watermark may be told, beside the board's own patience."""
SENT_SECONDS: Final = 1.0
"""How late it may be told what left a resident arena: nobody decides anything by it, and each word costs CPU time of a
node whose engine serves."""


class _Marks(Protocol):
    @property
    def generation(self) -> int: ...


class _Arena(Protocol):
    @property
    def state(self) -> ArenaState: ...
    @property
    def marks(self) -> _Marks: ...


class Pulse:
    """What was seen of the marks so far."""

    def __init__(self) -> None:
        self._filling = 0
        self._resident = 0
        self._looked_at = float("-inf")

    def moved(self, arenas: Sequence[_Arena], now: float) -> bool:
        """Whether there is something to tell. `now`: monotonic seconds."""
        filling = _generation(arena for arena in arenas if arena.state != "sealed")
        told, self._filling = filling != self._filling, filling
        if now - self._looked_at >= SENT_SECONDS:
            resident = _generation(arena for arena in arenas if arena.state == "sealed")
            told |= resident != self._resident
            self._resident, self._looked_at = resident, now
        return told


async def tell_moves(store: ArenaStore, board: Board) -> None:
    """Until cancelled."""
    pulse, loop = Pulse(), asyncio.get_running_loop()
    while True:
        if pulse.moved(store.all(), loop.time()):
            board.moved()
        await asyncio.sleep(PULSE_SECONDS)


def _generation(arenas: Iterable[_Arena]) -> int:
    """Another one after any change of their marks."""
    return sum(arena.marks.generation for arena in arenas)
