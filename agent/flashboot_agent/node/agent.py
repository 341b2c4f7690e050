"""The agent: one level-triggered round that moves the node towards what should be, woken by each change and each tick.

A round: who is here (the door's files) → who is served → which clones run → which arenas go. Blocking work runs in
threads; a round never waits for one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web

from flashboot_agent.core.errors import FlashBootError, NotReady, UnknownArena
from flashboot_agent.holder.client import HolderClient
from flashboot_agent.logs import Log
from flashboot_agent.memory.host import HostMemoryBackend
from flashboot_agent.node import rules
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.board import Board
from flashboot_agent.node.clone import Clone
from flashboot_agent.node.desired import DesiredState
from flashboot_agent.node.evict import Eviction
from flashboot_agent.node.holder_watch import HolderWatch
from flashboot_agent.node.http import application
from flashboot_agent.node.identity import NodeIdentity
from flashboot_agent.node.images import ImageStore
from flashboot_agent.node.link import link_speed
from flashboot_agent.node.loads import Loads
from flashboot_agent.node.metrics import Metrics
from flashboot_agent.node.pods import PodTable, read_published
from flashboot_agent.node.probes import Probes
from flashboot_agent.node.pulse import tell_moves
from flashboot_agent.node.settings import Settings
from flashboot_agent.node.sockets import PodSockets
from flashboot_agent.node.state import NodeState
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.node.verify import verify_all
from flashboot_agent.node.watch import FolderWatch
from flashboot_agent.transport.base import ArenaCatalog, Server, Transport
from flashboot_agent.transport.choose import Connected, connect
from flashboot_agent.wire.arena import ArenaState, Peer
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import WantedArena

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
        self._transports = reach(self.node.store)
        self._serve = serve
        self._server: Server | None = None
        self._sockets = PodSockets(self.node)
        self._metrics = Metrics(self.node)
        self._loads = Loads(self.node, self._metrics.loaded)
        self._wake = asyncio.Event()
        self._holder = HolderWatch(self.node, self._loads.open, lambda arena: self._background(self._verify(arena)))
        self._dropping: set[str] = set()
        self._ending = threading.Event()
        """For work in threads that would go on for long."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Arenas stay with the holder."""
        node, settings = self.node, self.node.settings
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, "work"))
        node.board.bind(loop)
        node.board.listen(self._wake.set)
        node.desired.load(now())
        node.pods.load()
        if node.identity is not None:
            node.identity.load()
        else:
            log.warning("TLS is off: whoever reaches this agent may command it and read its arenas")
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
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                self._wake.clear()
                watch.watch()
                if node.identity is not None:
                    node.identity.refresh()
                try:
                    self._round()
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
            for clone in node.clones.values():
                clone.cancel()
            self._loads.cancel()
            await asyncio.to_thread(self._end_threads)
            await runner.cleanup()
            log.info("agent ended")

    def _round(self) -> None:
        node = self.node
        known = {pod.uid: pod.meta for pod in node.pods}
        _, gone = node.pods.update(read_published(node.settings.meta, known))
        for pod in gone:
            self._sockets.end(pod)
        for pod in node.pods:
            self._sockets.serve(pod)
        if not self._holder.recovered:
            return
        users, attached, halves = node.users(), node.attached(), node.halves()
        loading = self._loads.round(users, self._dropping)
        for arena in node.store.all():
            name = arena.name
            held = rules.Held(
                arena.state, name in attached, name in users, arena.leases.read, name in loading, name in halves
            )
            arena.note_use(used=name in users or bool(arena.leases.children()))
            if not rules.keeps(arena.name, held, node.desired.current, fresh=node.desired.fresh):
                self._drop(arena.name, held.state, "no published pod uses it and no fresh desired state lists it")
            wanted = rules.find(arena.name, node.desired.current)
            arena.egress.rate = (wanted.egress_bytes_per_second if wanted else None) or 0
        self._clones(users, loading)
        probes = node.desired.current.probes if node.desired.current and node.desired.fresh else []
        node.probes.round(probes, self._connect, self._background)
        node.known = True

    def _clones(self, users: dict[str, list[str]], loading: set[str]) -> None:
        """Start, feed and end clones."""
        node = self.node
        wanted_here: dict[str, WantedArena] = {}
        for wanted in node.desired.current.arenas if node.desired.current else []:
            arena = node.store.get(wanted.arena)
            if wanted.arena not in loading and rules.clones(
                wanted, arena.state if arena else None, used=wanted.arena in users
            ):
                wanted_here[wanted.arena] = wanted
        for name, clone in list(node.clones.items()):
            if name in wanted_here and clone.ended_at is None:
                clone.update(wanted_here[name])
            elif clone.ended_at is not None:
                if time.monotonic() - clone.ended_at >= node.settings.tick_seconds:  # one that fails makes no hot loop
                    del node.clones[name]
            elif (arena := node.store.get(name)) is None or arena.state != "sealed":  # else it is about to end
                self._drop(name, arena.state if arena else None, "the clone is no longer wanted")
        for name, wanted in wanted_here.items():
            if name not in node.clones and name not in self._dropping and self._room_for(wanted):
                clone = node.clones[name] = Clone(
                    wanted,
                    node.store,
                    self._connect,
                    node.settings,
                    notify=node.board.changed,
                    moved=node.board.moved,
                    done=self._metrics.cloned,
                )
                log.info("clone started", arena=name, parents=[parent.node for parent in wanted.lanes[0].parents])
                clone.start()

    def _room_for(self, wanted: WantedArena) -> bool:
        taken = sum(clone.threads for clone in self.node.clones.values() if clone.ended_at is None)
        return taken == 0 or taken + len(wanted.lanes) <= self.node.settings.lane_threads

    def _connect(self, parent: Peer, arena: str) -> Connected:
        settings = self.node.settings
        return connect(self._transports, parent, arena, settings.node, settings.connect_seconds)

    def _drop(self, name: str, seen: ArenaState | None, why: str) -> None:
        """End what fills it, free its memory; in a thread, once at a time.

        An arena that was sealed since it was `seen` stays: it is worth more now, and the next round decides anew."""
        if name in self._dropping:
            return
        self._dropping.add(name)
        fillers = [each for each in (self.node.clones.pop(name, None), self.node.loads.pop(name, None)) if each]
        for filler in fillers:
            filler.cancel()

        def drop() -> None:
            patience = self.node.settings.connect_seconds + 2
            late = [filler for filler in fillers if not filler.join(patience)]
            if late:
                log.error("clone or load does not end", arena=name)
            arena = self.node.store.get(name)
            if arena is not None and arena.state == seen:
                self.node.store.drop(name, why)
            for filler in late:  # no other begins before: two that fill one arena could spoil what the marks say
                while not filler.join(patience) and not self._ending.is_set():
                    log.error("clone or load still does not end", arena=name)

        self._background(self._dropped(name, drop))

    async def _dropped(self, name: str, drop: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(drop)
        except FlashBootError as error:  # no holder: its memory is freed by `clean` once it is back
            log.warning("arena not freed yet", arena=name, why=str(error))
        finally:
            self._dropping.discard(name)
            self.node.board.changed()

    async def _verify(self, arena: Arena) -> None:
        """After a restart."""
        try:
            right = await asyncio.to_thread(verify_all, arena, 1, self._ending)
        except (UnknownArena, NotReady):
            return
        if right:
            log.info("arena verified", arena=arena.name)
        else:
            log.error("arena differs from its digests", arena=arena.name)
            self._drop(arena.name, arena.state, "its bytes differ from its digests")

    def _not_ready(self) -> str | None:
        if self._holder.why_not is None and not self.node.known:
            return "the first round is not through yet"
        return self._holder.why_not

    def _background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report)

    def _end_threads(self) -> None:
        self._loads.close()
        for clone in self.node.clones.values():
            clone.join(self.node.settings.connect_seconds + 2)
        if self._server is not None:
            self._server.close()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background work failed", exc_info=error)
