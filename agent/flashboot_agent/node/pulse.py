"""The pulse: bytes are moved and counted in C++, which tells nobody; this looks at the marks and tells the board."""

from __future__ import annotations

import asyncio
from typing import Final

from flashboot_agent.node.board import Board
from flashboot_agent.node.store import ArenaStore

PULSE_SECONDS: Final = 0.1
"""How late a watermark may be told, beside the board's own patience."""


async def tell_moves(store: ArenaStore, board: Board) -> None:
    """Until cancelled."""
    seen = 0
    while True:
        generation = sum(arena.marks.generation for arena in store.all())
        if generation != seen:
            board.moved()
            seen = generation
        await asyncio.sleep(PULSE_SECONDS)
