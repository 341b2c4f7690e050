"""Which updates of arenas run: begun when the desired state orders one, tried again while that may help, ended when
nobody wants it any more. Loop side; one call in every round.

At most one at a time per arena; a new order begins when the thread of the last one has ended.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import shutil
import threading
import time
from collections.abc import Sequence
from typing import Final

from flashboot_agent.core.errors import FlashBootError, NotReady
from flashboot_agent.logs import Log
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.orders import Cancelled
from flashboot_agent.node.pause import Engine, Engines
from flashboot_agent.node.record import Between
from flashboot_agent.node.state import NodeState
from flashboot_agent.node.update import SPOOL, ArenaUpdate, Meter
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.update import WantedUpdate

log = Log(__name__)

BEGIN_SECONDS: Final = 10.0
"""For the loop to look at one arena; it never takes so long."""
MOST_PAUSE: Final = 60.0
"""Seconds between two attempts of one order; the first ones follow sooner."""
END_SECONDS: Final = 5.0
"""For an update to put back what it wrote, when the agent ends. What is left then, the next agent puts back."""


class Updates:
    """Made inside the agent's event loop."""

    def __init__(self, node: NodeState, engines: Engines, meter: Meter) -> None:
        self._node, self._engines, self._meter = node, engines, meter
        self._loop = asyncio.get_running_loop()

    def round(self) -> None:
        node = self._node
        desired = node.desired.current if node.desired.fresh else None
        orders = {each.arena: each.update for each in desired.arenas if each.update} if desired else {}
        for name, update in list(node.updates.items()):
            order, arena = orders.get(name), node.store.get(name)
            if update.ended_at is None:
                if order != update.order:
                    update.cancel()
            elif order != update.order or arena is None or arena.record.version == order.version:
                del node.updates[name]
            elif update.retried and time.monotonic() - update.ended_at >= self._pause(update.attempt):
                self._start(name, order, update.attempt + 1, update.problem)
        for name, order in orders.items():
            arena = node.store.get(name)
            due = arena is not None and arena.state == "sealed" and arena.record.version != order.version
            if due and name not in node.updates:
                self._start(name, order, 1, None)
        self._clean()

    def cancel(self) -> None:
        for update in self._node.updates.values():
            update.cancel()

    def close(self) -> None:
        """After `cancel`, until they have ended, as far as they do. Blocking; the loop still runs."""
        for name, update in self._node.updates.items():
            if not update.join(END_SECONDS):
                log.error("an update does not end; the next agent puts back what it wrote", arena=name)

    def _pause(self, attempts: int) -> float:
        return float(min(self._node.settings.tick_seconds * 2 ** min(attempts - 1, 16), MOST_PAUSE))

    def _start(self, name: str, order: WantedUpdate, attempt: int, before: Problem | None) -> None:
        node = self._node
        update = node.updates[name] = ArenaUpdate(
            name,
            order,
            node=node.settings.node,
            folder=node.settings.updates_folder / name,
            drain_seconds=node.settings.drain_seconds,
            store=node.store,
            begin=self._begin,
            meter=self._meter,
            changed=node.board.changed,
            moved=node.board.moved,
            attempt=attempt,
            before=before,
        )
        if attempt == 1:
            log.info("update ordered", arena=name, version=order.version, origin=order.origin)
        update.start()

    def _clean(self) -> None:
        """What is left of arenas that are gone, and of orders that are withdrawn. What can't be removed is tried again
        in the next round."""
        node = self._node
        for folder in node.settings.updates_folder.glob("arena-*"):
            if folder.name in node.updates:
                continue
            gone = node.store.get(folder.name) is None
            shutil.rmtree(folder if gone else folder / SPOOL, ignore_errors=True)

    # From the threads of updates

    def _begin(self, update: ArenaUpdate, arena: Arena, between: Between) -> Sequence[Engine]:
        """See update_target.Host."""
        turn = threading.Lock()  # who takes it first decides: the loop bars the arena, or this thread has given up
        beginning = asyncio.run_coroutine_threadsafe(self._bar(update, arena, between, turn), self._loop)
        try:
            outcome = beginning.result(BEGIN_SECONDS)
        except (TimeoutError, concurrent.futures.CancelledError):  # this agent ends, or its loop is held up
            if turn.acquire(blocking=False):
                beginning.cancel()
                raise Cancelled from None
            outcome = beginning.result(BEGIN_SECONDS)  # it is about to end: it waits for nothing
        if isinstance(outcome, FlashBootError):
            raise outcome
        return outcome

    async def _bar(
        self, update: ArenaUpdate, arena: Arena, between: Between, turn: threading.Lock
    ) -> Sequence[Engine] | FlashBootError:
        """In one step of the loop, so that no engine gets the arena in between."""
        if not turn.acquire(blocking=False):
            raise Cancelled  # nobody hears of it
        node = self._node
        name = arena.name
        if node.updates.get(name) is not update or node.store.get(name) is not arena or arena.state != "sealed":
            return NotReady(f"{name} on node {node.settings.node} is not resident any more")
        try:
            engines = self._engines.using(name)
        except FlashBootError as error:
            return error.with_traceback(None)  # its frames hold the arena, and a future would keep them
        arena.begin_update(
            between,
            f"{name} on node {node.settings.node} is being updated, version {between}; nobody reads it until that is "
            "done: ask another node, or again",
        )
        return engines
