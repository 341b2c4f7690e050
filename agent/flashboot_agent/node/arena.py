"""One arena on this node: its memory, its record, its marks, and who uses it.

    allocated ──documents──► filling ──all lanes verified──► sealed      (a clone, a load)
        └──────allocate by the seed──► seeding ──commit──► sealed        (a seed)
    sealed ──begin_update──► updating ──end_update──► sealed             (an updatable one, in place)

Thread-safe: lanes write, servers read through leases, the event loop looks. Holds always: bytes that the marks call
verified never change, but while it is `updating`, when nobody reads; nobody is served before the documents are there;
the memory is closed only when nobody uses it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime

from flashboot_agent._native import EgressBucket
from flashboot_agent.core.digest import root_digest
from flashboot_agent.core.errors import NotReady, UnknownArena
from flashboot_agent.core.lanes import lane_bounds
from flashboot_agent.memory import memfd
from flashboot_agent.memory.base import DeviceMemory, Mapping, Region
from flashboot_agent.node.feeds import Feeds
from flashboot_agent.node.leases import Leases
from flashboot_agent.node.record import ArenaRecord, Between, RecordFile
from flashboot_agent.node.steps import require_step
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.arena import ArenaState
from flashboot_agent.wire.base import now
from flashboot_agent.wire.observed_arena import Accusation


class Arena:
    """See the module. Made by the store."""

    def __init__(self, region: Region, file: RecordFile, record: ArenaRecord, notify: Callable[[], None]) -> None:
        """`notify` is called after every change but those of the marks. Raises RecordDamaged."""
        self.region = region
        self.marks = file.marks(record)
        self.bounds = lane_bounds(record.bytes, record.lanes)
        self.feeds = Feeds(record.lanes)
        self.leases = Leases(record.arena, self._close_memory)
        self.egress = EgressBucket(0)
        """What leaves of this arena to all its children together."""
        self._file = file
        self._record = record
        self._saving = threading.Lock()
        self._notify = notify
        self._in_use = False
        self._mapping: Mapping | None = None
        self._meta: ArenaMeta | None = None
        self._layout_fd: int | None = None
        self.accusations: list[Accusation] = []

    # What it is

    @property
    def name(self) -> str:
        return self._record.arena

    @property
    def record(self) -> ArenaRecord:
        return self._record

    @property
    def state(self) -> ArenaState:
        return self._record.state

    @property
    def nbytes(self) -> int:
        return self._record.bytes

    @property
    def watermark(self) -> int:
        """Bytes that are verified, over all lanes."""
        return self.marks.total_verified

    @property
    def meta(self) -> ArenaMeta:
        """What children learn. Raises NotReady while the documents are not here."""
        if self._meta is None:
            raise NotReady(f"{self.name} is {self.state} here; its layout and digests are not known yet")
        return self._meta

    # How it comes to be

    def save(self) -> None:
        """Write the record for the first time."""
        self._file.save(self._record)

    def take_over(self, layout: bytes, digests: bytes) -> None:
        """After a restart of the agent: the documents as the record has them."""
        record = self._record
        if record.identity is not None and record.digest is not None:
            self._meta = ArenaMeta(
                self.name, record.identity, record.bytes, layout, digests, record.digest, record.version
            )

    def adopt_documents(self, meta: ArenaMeta, started_at: datetime) -> None:
        """It is known what it is going to be: from now on it serves its own children."""
        require_step(self.name, self.state, "filling")
        self._documents(meta)
        self._update(
            identity=meta.identity, digest=meta.digest, version=meta.version, started_at=started_at, state="filling"
        )

    def seal_clone(self) -> None:
        """All bytes are verified and every writable mapping is closed."""
        require_step(self.name, self.state, "sealed")
        if self.watermark != self.nbytes:
            raise ValueError(f"{self.name} has {self.watermark} of {self.nbytes} bytes; it can't be sealed")
        self.region.seal(updatable=self._record.updatable)
        self._update(state="sealed", sealed_at=now())

    def publish_seed(self, meta: ArenaMeta) -> None:
        """The seed committed: the region is sealed and `meta` was computed from its bytes."""
        require_step(self.name, self.state, "sealed")
        if not self.region.sealed:
            raise ValueError(f"{self.name} is published before it was sealed")
        self._documents(meta)
        self.marks.fill()
        self._update(identity=meta.identity, digest=meta.digest, state="sealed", sealed_at=now())

    def finish_seal(self) -> None:
        """After a restart between the seal and its record."""
        self._update(state="sealed", sealed_at=now())

    # How it becomes another version

    def begin_update(self, between: Between, why: str) -> None:
        """From now on nobody new reads it, who asks is told why; it may be neither version after a crash."""
        require_step(self.name, self.state, "updating")
        self.leases.bar(why)
        self._update(state="updating", between=between)

    def end_update(self, version: int, digests: bytes) -> None:
        """It is this version, one of the two."""
        require_step(self.name, self.state, "sealed")
        meta = replace(self.meta, version=version, chunk_digests=digests, digest=root_digest(digests))
        between = self._record.between
        if between is None or (version, meta.digest) not in (
            (between.base, between.base_digest),
            (between.new, between.new_digest),
        ):
            raise ValueError(f"{self.name} can't become version {version} ({meta.digest}): it was between {between}")
        self._documents(meta)  # torn, they are not missed: `updating` in the record says that bytes have to be hashed
        self._update(state="sealed", between=None, version=version, digest=meta.digest, sealed_at=now())
        self.leases.unbar()

    # Who uses it

    def lease(self, child: str) -> None:
        """A connection of the node `child` begins to read. Raises UnknownArena when it goes, NotReady without
        documents."""
        _ = self.meta
        self.leases.enter(child)
        self._notify()

    def release(self, child: str) -> None:
        self.leases.leave(child)
        self._notify()

    def reading(self) -> AbstractContextManager[None]:
        """`pinned`, for who reads its bytes. Raises UnknownArena when it goes, ArenaUpdating while it is updated."""
        return self.leases.reading()

    def pinned(self) -> AbstractContextManager[None]:
        """Keep memory and record open while this process itself works on them. Raises UnknownArena when it goes."""
        return self.leases.pinned()

    def whole(self) -> memoryview:
        """A new view of all bytes for reading, verified or not; the caller has a lease or a pin, and releases the view
        before. Raises UnknownArena when it goes."""
        with self.leases.here():
            if self._mapping is None:
                self._mapping = self.region.map(writable=False)
            return self._mapping.view[:]

    @property
    def used_at(self) -> datetime:
        """When it was last of use to a pod or a child, as far as that is over."""
        return self._record.used_at or self._record.sealed_at or self._record.created_at

    def note_use(self, *, used: bool) -> None:
        """Whether a pod or a child uses it now; in the record, once that ends, so that a restart changes no order."""
        if self._in_use and not used and self.state == "sealed":
            with suppress(UnknownArena), self.pinned():
                self._update(used_at=now())
        self._in_use = used

    # How it is handed out, and how it goes

    def deposit(self, memory: DeviceMemory) -> None:
        """Give the holder its handles again. Raises UnknownArena when it goes."""
        with self.pinned():  # not `here`: the holder may take its time, and the event loop looks at the leases
            memory.deposit(self.region)

    def export(self, *, writable: bool) -> int:
        """A new descriptor of the memory; the receiver closes it."""
        with self.leases.here():
            return self.region.export(writable=writable)

    def export_layout(self) -> int:
        """A new descriptor of the layout document, immutable and read-only; the receiver closes it."""
        with self.leases.here():
            if self._layout_fd is None:
                self._layout_fd = memfd.sealed_copy(f"flashboot-layout-{self.name}", self.meta.layout)
            return memfd.reopen_read_only(self._layout_fd)

    def revoke(self, seconds: float) -> bool:
        """End all leases: readers see UnknownArena. True when all let go in time; the memory goes with the last one."""
        self.marks.close()
        return self.leases.revoke(seconds)

    def _documents(self, meta: ArenaMeta) -> None:
        self._file.save_documents(meta.layout, meta.chunk_digests)
        with self._saving:
            self._record = self._record.model_copy(
                update={
                    "layout_bytes": len(meta.layout),
                    "layout_digest": meta.layout_digest,
                    "digests_bytes": len(meta.chunk_digests),
                }
            )
        self._meta = meta

    def _update(self, **facts: object) -> None:
        with self._saving:  # or who notes a use would write what another thread has just changed back
            record = self._record.model_copy(update=facts)
            self._file.save(record)
            self._record = record
        self._notify()

    def _close_memory(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        if self._layout_fd is not None:
            os.close(self._layout_fd)
            self._layout_fd = None
        self.region.close()
