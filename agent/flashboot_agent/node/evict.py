"""Who goes when memory is short: resident copies of which the operator says that they may.

    a thread allocates → the holder refuses → what is missing → the loop chooses and forgets → freed → tried again

Never one that a pod here belongs to or that a child reads: the loop alone knows both, so it looks and forgets in one
step. Nothing goes when all that may go would not suffice.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flashboot_agent.core.errors import FlashBootError, NotReady
from flashboot_agent.holder.budget import available
from flashboot_agent.logs import Log
from flashboot_agent.node import rules
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_arena import Evicted

log = Log(__name__)

SECONDS: Final = 20.0
"""For all of one eviction. Children are not waited for, there are none; the holder answers within half of it."""


@dataclass(frozen=True)
class Copy:
    """An arena that may go."""

    name: str
    nbytes: int
    last: bool
    """No other node has it."""
    used_at: datetime


def choose(copies: Iterable[Copy], missing: int) -> list[Copy]:
    """Those that go for `missing` bytes: first those that are elsewhere too, the least recently used first. None when
    all of them would not suffice, and none that need not."""
    order = sorted(copies, key=lambda copy: (copy.last, copy.used_at, copy.name))
    if sum(copy.nbytes for copy in order) < missing:
        return []
    chosen: list[Copy] = []
    freed = 0
    for copy in order:
        if freed < missing:
            chosen.append(copy)
            freed += copy.nbytes
    for copy in reversed(chosen.copy()):  # one that is large may have made an earlier one needless
        if freed - copy.nbytes >= missing:
            chosen.remove(copy)
            freed -= copy.nbytes
    return chosen


class Eviction:
    """Made inside the agent's event loop."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()

    def make_room(self, wanted: WantedArena, nbytes: int) -> bool:
        """See store.MakeRoom. Blocking, never on the loop."""
        try:
            stats = self._node.holder.stats()
        except NotReady:
            return False
        # At least one byte: the holder has refused, whatever the figures say a moment later.
        missing = max(1, nbytes - min(stats.budget_bytes - stats.used_bytes, available()))
        evicting = asyncio.run_coroutine_threadsafe(self._evict(wanted, missing), self._loop)
        try:
            return evicting.result(SECONDS)
        except TimeoutError:  # it goes on by itself: what was forgotten must be freed
            log.error("no room was made in time", arena=wanted.arena, bytes=nbytes, seconds=SECONDS)
        except concurrent.futures.CancelledError:  # this agent ends
            pass
        return False

    async def _evict(self, wanted: WantedArena, missing: int) -> bool:
        node = self._node
        chosen = choose(self._copies(), missing)
        gone = [arena for copy in chosen if (arena := node.store.forget_unread(copy.name)) is not None]
        why = f"its memory was needed for rank {wanted.place} of {wanted.namespace}/{wanted.model_replica}"
        for arena in gone:
            node.evictions += 1
            owner = arena.record.owner()
            node.evicted.append(Evicted(**owner, bytes=arena.nbytes, at=now(), message=why))
        await asyncio.gather(*(asyncio.to_thread(self._free, arena, why) for arena in gone))
        return bool(gone)

    def _copies(self) -> Iterator[Copy]:
        node = self._node
        users = node.users()
        for arena in node.store.all():
            wanted = rules.find(arena.name, node.desired.current)
            spared = wanted is None or wanted.eviction == "never" or arena.name in users or arena.leases.read
            if wanted is not None and arena.state == "sealed" and not spared:
                yield Copy(arena.name, arena.nbytes, wanted.eviction == "last", arena.used_at)

    def _free(self, arena: Arena, why: str) -> None:
        try:
            self._node.store.free(arena, why)
        except FlashBootError as error:  # no holder: its memory is freed by `clean` once it is back
            log.warning("arena not freed yet", arena=arena.name, why=str(error))
