"""All arenas of this node. What the holder keeps and what this store knows are made equal again and again.

Blocking calls, from worker threads. Also the chunk server's catalog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from flashboot_agent._native import EgressBucket, Marks
from flashboot_agent.core.errors import BadRequest, InsufficientMemory, NotReady, UnknownArena
from flashboot_agent.logs import Log
from flashboot_agent.memory.base import DeviceMemory, Region
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.board import Board
from flashboot_agent.node.record import ArenaRecord, RecordDamaged, RecordFile
from flashboot_agent.node.unfinished import Settle
from flashboot_agent.transport.base import ArenaCatalog, ArenaMeta, SourceArena
from flashboot_agent.wire.arena import Way
from flashboot_agent.wire.base import Uid, now
from flashboot_agent.wire.desired import WantedArena

log = Log(__name__)

DROP_DEADLINE: Final = 10.0
TOLD_HOLDERS: Final = 8
"""Of those who hold the memory, in the message of a refusal."""


def _no_updates(arena: Arena) -> None:
    raise RecordDamaged("it is between two versions, and nobody here can tell which")


MakeRoom = Callable[[WantedArena, int], bool]
"""Frees memory for so many bytes of the wanted arena; False when nothing could be freed."""


class Lease(SourceArena):
    """The right of one connection of a child to read one arena."""

    def __init__(self, arena: Arena, child: str, node_egress: EgressBucket) -> None:
        arena.lease(child)
        self._arena = arena
        self._child = child
        self._node_egress = node_egress
        self._open = True

    @property
    def meta(self) -> ArenaMeta:
        return self._arena.meta

    @property
    def marks(self) -> Marks:
        return self._arena.marks

    @property
    def memory(self) -> memoryview:
        return self._arena.whole()

    @property
    def buckets(self) -> list[EgressBucket]:
        return [self._arena.egress, self._node_egress]

    def close(self) -> None:
        if self._open:
            self._open = False
            self._arena.release(self._child)


class ArenaStore(ArenaCatalog):
    """Arena name → Arena."""

    def __init__(
        self, memory: DeviceMemory, board: Board, *, revoke_seconds: float = 1.0, egress_bytes_per_second: int = 0
    ) -> None:
        """`egress_bytes_per_second` caps what leaves this node, all arenas together; 0 means no cap."""
        self._memory = memory
        self._board = board
        self._revoke_seconds = revoke_seconds
        self._egress = EgressBucket(egress_bytes_per_second)
        self._arenas: dict[str, Arena] = {}
        self._busy: set[str] = set()
        """Names that a thread is making or freeing; the janitor leaves them alone."""
        self._lock = threading.Condition()
        self.make_room: MakeRoom = lambda wanted, nbytes: False
        """Asked, in the thread that allocates, when the memory does not suffice."""
        self.settle: Settle = _no_updates
        """Called for an arena that is found between two versions."""

    def open(self, arena: str, child: str) -> SourceArena:
        found = self.get(arena)
        if found is None:
            raise UnknownArena(f"{arena} is not on this node")
        return Lease(found, child, self._egress)

    def get(self, arena: str) -> Arena | None:
        with self._lock:
            return self._arenas.get(arena)

    def all(self) -> list[Arena]:
        with self._lock:
            return list(self._arenas.values())

    def allocate(
        self, wanted: WantedArena, nbytes: int, way: Way, *, seed_pod: Uid | None = None, lanes: int = 1
    ) -> Arena:
        """Memory for a new arena, all pages present. Waits while one of this name is still being freed.

        Raises InsufficientMemory, NotReady (no holder, or still being freed), BadRequest (it exists)."""
        name = wanted.arena
        self._reserve(name)
        try:
            region = self._memory_for(wanted, nbytes)
            stamp = now()
            record = ArenaRecord(
                **wanted.owner(),
                way=way,
                state="seeding" if way == "seed" else "allocated",
                bytes=nbytes,
                lanes=lanes,
                seed_pod=seed_pod,
                updatable=wanted.updatable,
                created_at=stamp,
                started_at=stamp if way == "seed" else None,
            )
            arena = Arena(region, RecordFile(region.record), record, self._board.changed)
            arena.save()
            with self._lock:
                self._arenas[name] = arena
        finally:
            self._release(name)
        log.info("arena allocated", arena=name, bytes=nbytes, way=way, lanes=lanes, pod=seed_pod)
        self._board.changed()
        return arena

    def drop(self, name: str, why: str) -> None:
        """Forget it at once, end its readers' leases, free its memory. Idempotent."""
        with self._lock:
            arena = self._arenas.pop(name, None)
            if arena is None:
                return
            self._busy.add(name)
        self.free(arena, why)

    def forget_unread(self, name: str) -> Arena | None:
        """From now on nobody gets it any more; the caller has to `free` it. None, and nothing changes, when it is not
        here or a child reads it."""
        with self._lock:
            arena = self._arenas.get(name)
            if arena is None or not arena.leases.shut():
                return None
            del self._arenas[name]
            self._busy.add(name)
            return arena

    def free(self, arena: Arena, why: str) -> None:
        """The rest of a drop, for an arena that is forgotten."""
        self._board.changed()
        try:
            quiet = arena.revoke(self._revoke_seconds)
            self._memory.free(arena.name)
        finally:  # without a holder the janitor frees it later
            self._release(arena.name)
        log.info("arena dropped", arena=arena.name, why=why, readers_let_go=quiet)

    def recover(self) -> None:
        """After a start: take what the holder kept, as far as its record can be believed.

        Raises NotReady; called again, it goes on."""
        for name in self._memory.inventory():
            if self.get(name) is not None:
                continue
            region = self._memory.adopt(name)
            if region is None:
                continue
            try:
                arena = self._recovered(region)
            except RecordDamaged as damage:
                log.warning("arena not recovered", arena=name, why=str(damage))
                region.close()
                self._memory.free(name)
                continue
            with self._lock:
                self._arenas[name] = arena
            log.info("arena recovered", arena=name, state=arena.state, watermark=arena.watermark, bytes=arena.nbytes)
        self._board.changed()

    def deposit_all(self) -> None:
        """The holder restarted: it gets all handles again."""
        for arena in self.all():
            try:
                arena.deposit(self._memory)
            except UnknownArena:  # dropped since
                continue
            log.info("arena deposited again", arena=arena.name)

    def clean(self) -> None:
        """Free what the holder keeps and nobody here knows: left by a process that died half-way."""
        for name in self._memory.inventory():
            with self._lock:
                if name in self._arenas or name in self._busy:
                    continue
                self._busy.add(name)
            try:
                self._memory.free(name)
                log.warning("orphan freed", arena=name)
            finally:
                self._release(name)

    def _recovered(self, region: Region) -> Arena:
        file = RecordFile(region.record)
        record = file.load()
        if record.arena != region.arena or record.bytes != region.nbytes:
            raise RecordDamaged(
                f"it speaks of {record.arena} with {record.bytes} bytes, the region has {region.nbytes}"
            )
        if record.state in ("allocated", "seeding"):
            raise RecordDamaged(f"it was {record.state} when the agent ended; half an arena is of no use")
        arena = Arena(region, file, record, self._board.changed)
        if record.state in ("sealed", "updating") and not (region.sealed and arena.watermark == record.bytes):
            raise RecordDamaged("it says sealed, and the memory is not")
        if record.state == "updating":
            arena.take_over(file.load_layout(record), b"")
            self.settle(arena)
            return arena
        layout, digests = file.load_documents(record)
        arena.take_over(layout, digests)
        if record.state == "filling" and region.sealed:
            arena.finish_seal()
        return arena

    def _memory_for(self, wanted: WantedArena, nbytes: int) -> Region:
        """Raises InsufficientMemory, with who holds the memory, once nobody can make room any more."""
        while True:
            try:
                return self._memory.allocate(wanted.arena, nbytes)
            except InsufficientMemory as error:
                if not self.make_room(wanted, nbytes):
                    raise InsufficientMemory(f"{error}; {self._holders()}") from None

    def _reserve(self, name: str) -> None:
        deadline = time.monotonic() + DROP_DEADLINE
        with self._lock:
            while name in self._busy:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise NotReady(f"{name} is still being made or freed after {DROP_DEADLINE:.0f} s on this node")
                self._lock.wait(left)
            if name in self._arenas:
                raise BadRequest(f"{name} exists already, {self._arenas[name].state}")
            self._busy.add(name)

    def _release(self, name: str) -> None:
        with self._lock:
            self._busy.discard(name)
            self._lock.notify_all()

    def _holders(self) -> str:
        """Who has this node's memory, the largest first."""
        arenas = sorted(self.all(), key=lambda arena: arena.nbytes, reverse=True)
        told = [
            f"{arena.record.namespace}/{arena.record.model_replica} {arena.nbytes} bytes ({arena.name}, {arena.state})"
            for arena in arenas[:TOLD_HOLDERS]
        ]
        more = [f"{len(arenas) - TOLD_HOLDERS} more"] if len(arenas) > TOLD_HOLDERS else []
        return f"held are {', '.join(told + more)}" if told else "no arena is held"
