"""An arena that goes: what fills it ends, then its memory is freed; in a thread, once at a time per arena.

No other clone or load of the arena begins before the one that was told to end has ended: two that fill one arena could
spoil what its marks say.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from flashboot_agent.core.errors import FlashBootError
from flashboot_agent.logs import Log
from flashboot_agent.node.background import Background
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire.arena import ArenaState

log = Log(__name__)


class Drops:
    """Loop side."""

    def __init__(self, node: NodeState, background: Background, ending: threading.Event) -> None:
        """`ending`: the process ends, and waits for nobody."""
        self.under_way: set[str] = set()
        """Names of the arenas."""
        self._node = node
        self._background = background
        self._ending = ending

    def drop(self, name: str, seen: ArenaState | None, why: str) -> None:
        """An arena that was sealed since it was `seen` stays: it is worth more now, and the next round decides anew."""
        if name in self.under_way:
            return
        self.under_way.add(name)
        fillers = [each for each in (self._node.clones.pop(name, None), self._node.loads.pop(name, None)) if each]
        for filler in fillers:
            filler.cancel()

        def work() -> None:
            patience = self._node.settings.connect_seconds + 2
            late = [filler for filler in fillers if not filler.join(patience)]
            if late:
                log.error("clone or load does not end", arena=name)
            arena = self._node.store.get(name)
            if arena is not None and arena.state == seen:
                self._node.store.drop(name, why)
            for filler in late:
                while not filler.join(patience) and not self._ending.is_set():
                    log.error("clone or load still does not end", arena=name)

        self._background.start(self._watched(name, work))

    async def _watched(self, name: str, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(work)
        except FlashBootError as error:  # no holder: its memory is freed by `clean` once it is back
            log.warning("arena not freed yet", arena=name, why=str(error))
        finally:
            self.under_way.discard(name)
            self._node.board.changed()
