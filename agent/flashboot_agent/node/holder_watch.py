"""In touch with the holder: take back what it kept, give it back what it lost, free what nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flashboot_agent.core.errors import FlashBootError
from flashboot_agent.logs import Log
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.state import NodeState

log = Log(__name__)


class HolderWatch:
    """One task, `run`."""

    def __init__(self, node: NodeState, prepare: Callable[[], None], found: Callable[[Arena], None]) -> None:
        """`prepare` is called from a thread before anything is taken back, again when that failed; `found` for each
        sealed arena that an earlier process left."""
        self._node = node
        self._prepare = prepare
        self._found = found
        self.recovered = False
        """What an earlier process left is in the store."""
        self.why_not: str | None = "the holder was not asked yet"
        """Why this agent is not ready, as far as the holder goes."""

    async def run(self) -> None:
        """Look every tick, until cancelled."""
        node = self._node
        while True:
            try:
                await self._look()
                self._say(None)
            except FlashBootError as error:
                if node.stats is not None:
                    node.stats = None
                    node.board.changed()
                self._say(f"{error.reason}: {error}")
            await asyncio.sleep(node.settings.tick_seconds)

    async def _look(self) -> None:
        """Raises NotReady and others of FlashBootError when the holder does not do its part."""
        node = self._node
        stats = await asyncio.to_thread(node.holder.stats)
        if not self.recovered:
            await asyncio.to_thread(self._prepare)
            before = node.store.all()  # from a try that the holder did not live through
            await asyncio.to_thread(node.store.recover)
            if before:
                await asyncio.to_thread(node.store.deposit_all)
            self.recovered = True
            for arena in node.store.all():
                if arena.state == "sealed":
                    self._found(arena)
        elif node.stats is None or node.stats.instance != stats.instance:
            await asyncio.to_thread(node.store.deposit_all)
        await asyncio.to_thread(node.store.clean)
        if node.stats != stats:
            node.stats = stats
            node.board.changed()

    def _say(self, why_not: str | None) -> None:
        if why_not != self.why_not:
            self.why_not = why_not
            log.info("ready" if why_not is None else "not ready", why=why_not)
