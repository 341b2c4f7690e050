"""The agent: its parts, how they begin and end, and its rounds (round.py), one for each change and each tick.

Blocking work runs in threads; a round never waits for one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web

from flashboot_agent.holder.client import HolderClient
from flashboot_agent.logs import Log
from flashboot_agent.memory.host import HostMemoryBackend
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.background import Background
from flashboot_agent.node.board import Board
from flashboot_agent.node.clones import Clones
from flashboot_agent.node.desired import DesiredState
from flashboot_agent.node.drops import Drops
from flashboot_agent.node.evict import Eviction
from flashboot_agent.node.holder_watch import HolderWatch
from flashboot_agent.node.http import application
from flashboot_agent.node.identity import NodeIdentity
from flashboot_agent.node.images import ImageStore
from flashboot_agent.node.in_use import NoneMayUseIt
from flashboot_agent.node.link import link_speed
from flashboot_agent.node.loads import Loads
from flashboot_agent.node.metrics import Metrics
from flashboot_agent.node.patrol import Patrol
from flashboot_agent.node.pods import PodTable
from flashboot_agent.node.probes import Probes
from flashboot_agent.node.pulse import tell_moves
from flashboot_agent.node.round import Round
from flashboot_agent.node.settings import Settings
from flashboot_agent.node.sockets import PodSockets
from flashboot_agent.node.state import NodeState
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.node.unfinished import settle
from flashboot_agent.node.updates import Updates
from flashboot_agent.node.watch import FolderWatch
from flashboot_agent.transport.base import ArenaCatalog, Server, Transport
from flashboot_agent.transport.choose import Connected, connect
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.base import now

log = Log(__name__)

THREADS: Final = 64
"""Blocking work at a time: allocations and drops wait more than they compute, and must not starve each other."""

SHUTDOWN_SECONDS: Final = 0.5
"""For long polls at the end; their operator asks the next agent."""

Serve = Callable[[ArenaCatalog], Server]
Reach = Callable[[ArenaCatalog], Sequence[Transport]]
"""This node's transports, fastest first; some read arenas of this node in place."""


class Agent:
    """Made and run inside one event loop."""

    def __init__(
        self,
        settings: Settings,
        reach: Reach,
        serve: Serve,
        identity: NodeIdentity | None = None,
    ) -> None:
        """Without an `identity` there is no TLS, and anybody may command this agent."""
        board = Board()
        holder = HolderClient(settings.holder_socket)
        self.node = NodeState(
            settings=settings,
            board=board,
            store=ArenaStore(
                HostMemoryBackend(holder),
                board,
                revoke_seconds=settings.revoke_seconds,
                egress_bytes_per_second=settings.egress_bytes_per_second,
            ),
            holder=holder,
            pods=PodTable(settings.state, board),
            desired=DesiredState(settings.node, settings.state),
            identity=identity,
            images=ImageStore(settings.images, settings.images_budget_bytes, board.changed),
            probes=Probes(board.changed),
            link_bytes_per_second=settings.link_bytes_per_second or link_speed(),
        )
        self.node.store.make_room = Eviction(self.node).make_room
        self.node.store.settle = lambda arena: settle(arena, settings.updates_folder / arena.name)
        self._transports = reach(self.node.store)
        self._serve = serve
        self._server: Server | None = None
        self._sockets = PodSockets(self.node)
        self._metrics = Metrics(self.node)
        self._ending = threading.Event()
        """For work in threads that would go on for long."""
        self._background = Background()
        self._drops = Drops(self.node, self._background, self._ending)
        self._patrol = Patrol(self.node, self._drops, self._ending)
        self._loads = Loads(self.node, self._metrics.loaded)
        self._clones = Clones(self.node, self._drops, self._connect, self._metrics.cloned)
        self._updates = Updates(self.node, NoneMayUseIt(self.node), self._metrics)
        self._holder = HolderWatch(self.node, self._loads.open, self._found)
        self._round = Round(
            self.node,
            sockets=self._sockets,
            loads=self._loads,
            clones=self._clones,
            updates=self._updates,
            drops=self._drops,
            background=self._background,
            connect=self._connect,
        )
        self._wake = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Arenas stay with the holder."""
        node, settings = self.node, self.node.settings
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, "work"))
        node.board.bind(loop)
        node.board.listen(self._wake.set)
        self._load()
        self._server = await asyncio.to_thread(self._serve, node.store)
        node.chunk_address = self._server.address
        runner = web.AppRunner(
            application(node, self._metrics, self._not_ready),
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        await runner.setup()
        context = node.identity.context if node.identity is not None else None
        await web.TCPSite(runner, settings.bind, settings.http_port, ssl_context=context).start()
        watch = FolderWatch([settings.meta, settings.pods], self._wake.set)
        log.info("agent serving", http=f"{settings.bind}:{settings.http_port}", chunks=node.chunk_address)
        keeper = asyncio.create_task(self._holder.run())
        pulse = asyncio.create_task(tell_moves(node.store, node.board))
        self._background.start(self._patrol.run())
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                self._wake.clear()
                watch.watch()
                if node.identity is not None:
                    node.identity.refresh()
                try:
                    self._round.run(recovered=self._holder.recovered)
                except OSError as error:  # a full disk, say: the next tick tries again
                    log.error("round failed", exc_info=error)
                waiting = asyncio.create_task(self._wake.wait())
                await asyncio.wait(
                    {waiting, stopped, keeper}, timeout=settings.tick_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()
                if keeper.done():
                    keeper.result()  # a fault of ours: end loudly, the arenas stay with the holder
        finally:
            self._ending.set()
            for task in (keeper, pulse, stopped):
                task.cancel()
            watch.close()
            await self._sockets.close()
            self._clones.cancel()
            self._loads.cancel()
            self._updates.cancel()
            await asyncio.to_thread(self._end_threads)
            await runner.cleanup()
            log.info("agent ended")

    def _load(self) -> None:
        """What an earlier process left on disk."""
        self.node.desired.load(now())
        self.node.pods.load()
        if self.node.identity is not None:
            self.node.identity.load()
        else:
            log.warning("TLS is off: whoever reaches this agent may command it and read its arenas")

    def _connect(self, parent: Peer, arena: str) -> Connected:
        settings = self.node.settings
        return connect(self._transports, parent, arena, settings.node, settings.connect_seconds)

    def _found(self, arena: Arena) -> None:
        """An earlier process left it."""
        self._background.start(self._patrol.verify(arena.name))

    def _not_ready(self) -> str | None:
        if self._holder.why_not is None and not self.node.known:
            return "the first round is not through yet"
        return self._holder.why_not

    def _end_threads(self) -> None:
        self._loads.close()
        self._clones.join()
        self._updates.close()
        if self._server is not None:
            self._server.close()
