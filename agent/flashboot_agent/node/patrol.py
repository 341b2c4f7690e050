"""Looks whether arenas still are what their records say: what an earlier process left, once; and again and again those
that are not sealed against writes because they can be updated in place. What differs is dropped.
"""

from __future__ import annotations

import asyncio
import threading
import time

from flashboot_agent.core.errors import NotReady, UnknownArena
from flashboot_agent.logs import Log
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.drops import Drops
from flashboot_agent.node.state import NodeState
from flashboot_agent.node.verify import verify_all

log = Log(__name__)


class Patrol:
    """Loop side."""

    def __init__(self, node: NodeState, drops: Drops, ending: threading.Event) -> None:
        """`ending`: the process ends, and waits for nobody."""
        self._node, self._drops, self._ending = node, drops, ending
        self._looked: dict[str, float] = {}
        """Arena → when it was compared last, or was new here; by the monotonic clock."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if (name := self._due()) is not None:
                await self.verify(name)
            await asyncio.sleep(self._node.settings.tick_seconds)

    async def verify(self, name: str) -> None:
        """By name: a task that held the arena would keep one that is dropped meanwhile."""
        right = await asyncio.to_thread(self._verified, name)
        if right is None:
            return
        self._looked[name] = time.monotonic()
        arena = self._node.store.get(name)
        if right:
            log.info("arena verified", arena=name)
        elif arena is not None:
            log.error("arena differs from its digests", arena=name)
            self._drops.drop(name, arena.state, "its bytes differ from its digests")

    def _due(self) -> str | None:
        """The updatable arena that was not looked at for longest, if it is time."""
        now = time.monotonic()
        here = [arena.name for arena in self._node.store.all() if arena.state == "sealed" and arena.record.updatable]
        self._looked = {name: self._looked.get(name, now) for name in here}
        oldest = min(here, key=lambda name: self._looked[name], default=None)
        due = oldest is not None and now - self._looked[oldest] >= self._node.settings.verify_seconds
        return oldest if due else None

    def _verified(self, name: str) -> bool | None:
        """None when it can't be told: it goes, or is updated."""
        arena: Arena | None = self._node.store.get(name)
        try:
            return None if arena is None else verify_all(arena, 1, self._ending)
        except (UnknownArena, NotReady):
            return None
