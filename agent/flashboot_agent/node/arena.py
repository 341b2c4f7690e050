"""One arena on this node: its memory, its record, its watermark, and who reads from it.

    allocated ──documents──► filling ──all verified──► sealed          (a clone)
        └──────allocate by the seed──► seeding ──commit──► sealed      (a seed)

Thread-safe: a clone thread writes, server threads read through leases, the event loop looks. Holds always: bytes below
the watermark are verified and never change; nobody is served before the documents are there; the serving mapping is
closed only when no lease and no pin is left (a descriptor that is closed under a writer could be another file's soon).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from flashboot_agent.core.errors import NotReady, UnknownArena
from flashboot_agent.memory import memfd
from flashboot_agent.memory.base import DeviceMemory, Mapping, Region
from flashboot_agent.node.record import ArenaRecord, Counter, RecordFile, document_digest
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.base import now
from flashboot_agent.wire.control import Accusation, ArenaState, ObservedArena, Problem

CHILD_SECONDS: Final = 5.0
"""How long after its last byte a node still counts as a child."""

STEPS: Final[dict[ArenaState, frozenset[ArenaState]]] = {
    "allocated": frozenset({"filling", "seeding"}),
    "filling": frozenset({"sealed"}),
    "seeding": frozenset({"sealed"}),
    "sealed": frozenset(),
}


def require_step(arena: str, old: ArenaState, new: ArenaState) -> None:
    """Raises ValueError: a wrong order is a fault of ours, never of a peer."""
    if new not in STEPS[old]:
        raise ValueError(f"{arena} can't go from {old} to {new}")


class Arena:
    """See the module. Made by the store."""

    def __init__(self, region: Region, record: ArenaRecord, notify: Callable[[bool], None]) -> None:
        """`notify(hard)` is called after every change; hard means more than a watermark."""
        self.region = region
        self._file = RecordFile(region.record)
        self._record = record
        self._notify = notify
        self._changed = threading.Condition()
        self._mapping: Mapping | None = None
        self._leases = 0
        self._gone = False
        self._children: dict[str, float] = {}
        self._counters = dict.fromkeys(Counter, 0)
        self._layout = b""
        self._digests = b""
        self._layout_fd: int | None = None
        self.parent: str | None = None
        self.transport: str | None = None
        self.transport_reason: str | None = None
        self.problem: Problem | None = None
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
        return self._counters[Counter.WATERMARK]

    @property
    def received(self) -> int:
        return self._counters[Counter.RECEIVED]

    def counter(self, counter: Counter) -> int:
        return self._counters[counter]

    @property
    def meta(self) -> ArenaMeta:
        """What children learn. Raises NotReady while the documents are not here."""
        record = self._record
        if record.identity is None or record.digest is None or not self._digests:
            raise NotReady(f"{self.name} is {self.state} here; its layout and digests are not known yet")
        return ArenaMeta(self.name, record.identity, record.bytes, self._layout, self._digests, record.digest)

    @property
    def layout(self) -> bytes:
        return self._layout

    # How it comes to be

    def save(self) -> None:
        """Write the record for the first time."""
        self._file.save(self._record)

    def take_over(self, file: RecordFile, layout: bytes, digests: bytes) -> None:
        """After a restart of the agent: documents and counters as the record has them."""
        self._file = file
        self._layout, self._digests = layout, digests
        self._counters = {counter: file.get(counter) for counter in Counter}

    def adopt_documents(self, meta: ArenaMeta, started_at: datetime) -> None:
        """A clone learned from its parent what it is going to be: from now on it serves its own children."""
        require_step(self.name, self.state, "filling")
        self._documents(meta)
        self._update(identity=meta.identity, digest=meta.digest, started_at=started_at, state="filling")

    def received_to(self, end: int, nbytes: int) -> None:
        """A pull wrote bytes up to `end`; nobody verified them yet."""
        self._set(Counter.RECEIVED, end)
        self._set(Counter.BYTES_IN, self._counters[Counter.BYTES_IN] + nbytes)

    def refetch(self, start: int) -> None:
        """The chunk at `start` was wrong: it is received again."""
        self._set(Counter.RECEIVED, start)
        self._set(Counter.REFETCHED, self._counters[Counter.REFETCHED] + 1)

    def verified_to(self, end: int) -> None:
        """Raise the watermark."""
        with self._changed:
            self._set(Counter.WATERMARK, end)
            self._changed.notify_all()
        self._notify(False)

    def seal_clone(self) -> None:
        """All bytes are verified and the clone's own writable mapping is closed."""
        require_step(self.name, self.state, "sealed")
        if self.watermark != self.nbytes:
            raise ValueError(f"{self.name} has {self.watermark} of {self.nbytes} bytes; it can't be sealed")
        self.region.seal()
        self._update(state="sealed", sealed_at=now())

    def publish_seed(self, meta: ArenaMeta) -> None:
        """The seed committed: the region is sealed and `meta` was computed from its bytes."""
        require_step(self.name, self.state, "sealed")
        if not self.region.sealed:
            raise ValueError(f"{self.name} is published before it was sealed")
        self._documents(meta)
        for counter in (Counter.RECEIVED, Counter.WATERMARK):
            self._set(counter, self.nbytes)
        self._update(identity=meta.identity, digest=meta.digest, state="sealed", sealed_at=now())

    def finish_seal(self) -> None:
        """After a restart between the seal and its record."""
        self._update(state="sealed", sealed_at=now())

    def trouble(self, problem: Problem | None) -> None:
        """The present trouble, or its end."""
        if problem != self.problem:
            self.problem = problem
            self._notify(True)

    # Who reads from it

    def lease(self, child: str) -> None:
        """A child begins to read. Raises UnknownArena when the arena goes, NotReady without documents."""
        with self._changed:
            self._require_here()
            _ = self.meta
            self._leases += 1
            self._children[child] = time.monotonic()
        self._notify(True)

    def release(self, child: str) -> None:
        with self._changed:
            self._children[child] = time.monotonic()
            self._let_go()

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep memory and record open while this process itself works on them. Raises UnknownArena when it goes."""
        with self._changed:
            self._require_here()
            self._leases += 1
        try:
            yield
        finally:
            with self._changed:
                self._let_go()

    def sent(self, child: str, nbytes: int) -> None:
        with self._changed:
            self._children[child] = time.monotonic()
            if not self._gone:
                self._set(Counter.BYTES_OUT, self._counters[Counter.BYTES_OUT] + nbytes)
        self._notify(False)

    def wait_watermark(self, above: int, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                self._require_here()
                left = deadline - time.monotonic()
                if self.watermark > above or left <= 0:
                    return self.watermark
                self._changed.wait(left)

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Verified bytes; the caller releases the view before its lease."""
        with self._changed:
            self._require_here()
            if offset < 0 or nbytes < 0 or offset + nbytes > self.watermark:
                raise NotReady(f"{self.name}: bytes {offset}+{nbytes} are above the watermark {self.watermark}")
            return self._whole()[offset : offset + nbytes]

    def whole(self) -> memoryview:
        """All bytes for reading, verified or not; the caller has it pinned and releases the view before."""
        with self._changed:
            self._require_here()
            return self._whole()[:]

    def children(self) -> list[str]:
        limit = time.monotonic() - CHILD_SECONDS
        with self._changed:
            return sorted(child for child, at in self._children.items() if at >= limit)[:256]

    # How it is handed out, and how it goes

    @property
    def gone(self) -> bool:
        return self._gone

    def deposit(self, memory: DeviceMemory) -> None:
        """Give the holder its handles again."""
        with self._changed:
            if not self._gone:
                memory.deposit(self.region)

    def export(self, *, writable: bool) -> int:
        """A new descriptor of the memory; the receiver closes it."""
        with self._changed:
            self._require_here()
            return self.region.export(writable=writable)

    def export_layout(self) -> int:
        """A new descriptor of the layout document, immutable and read-only; the receiver closes it."""
        with self._changed:
            self._require_here()
            if self._layout_fd is None:
                self._layout_fd = memfd.sealed_copy(f"flashboot-layout-{self.name}", self._layout)
            return memfd.reopen_read_only(self._layout_fd)

    def revoke(self, seconds: float) -> bool:
        """End all leases: readers see UnknownArena. True when all let go in time; the memory goes with the last one."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._gone = True
            self._changed.notify_all()
            while self._leases and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._leases == 0:
                self._close_memory()
                return True
            return False

    def observed(self, pods: list[str]) -> ObservedArena:
        record = self._record
        return ObservedArena(
            arena=record.arena,
            namespace=record.namespace,
            model_replica=record.model_replica,
            model_replica_uid=record.model_replica_uid,
            expected_identity=record.expected_identity,
            place=record.place,
            state=record.state,
            way=record.way,
            bytes=record.bytes,
            watermark=self.watermark,
            identity=record.identity,
            digest=record.digest,
            parent=self.parent,
            transport=self.transport,
            transport_reason=self.transport_reason,
            created_at=record.created_at,
            started_at=record.started_at,
            sealed_at=record.sealed_at,
            bytes_in=self._counters[Counter.BYTES_IN],
            bytes_out=self._counters[Counter.BYTES_OUT],
            refetched_chunks=self._counters[Counter.REFETCHED],
            children=self.children(),
            pods=pods[:256],
            accusations=self.accusations[-16:],
            problem=self.problem,
        )

    def _documents(self, meta: ArenaMeta) -> None:
        self._file.save_documents(meta.layout, meta.chunk_digests)
        self._record = self._record.model_copy(
            update={
                "layout_bytes": len(meta.layout),
                "layout_digest": document_digest(meta.layout),
                "digests_bytes": len(meta.chunk_digests),
            }
        )
        self._layout, self._digests = meta.layout, meta.chunk_digests

    def _update(self, **facts: object) -> None:
        record = self._record.model_copy(update=facts)
        self._file.save(record)
        with self._changed:
            self._record = record
            self._changed.notify_all()
        self._notify(True)

    def _set(self, counter: Counter, value: int) -> None:
        self._counters[counter] = value
        self._file.set(counter, value)

    def _let_go(self) -> None:
        self._leases -= 1
        if self._gone and self._leases == 0:
            self._close_memory()
        self._changed.notify_all()

    def _whole(self) -> memoryview:
        if self._mapping is None:
            self._mapping = self.region.map(writable=False)
        return self._mapping.view

    def _require_here(self) -> None:
        if self._gone:
            raise UnknownArena(f"{self.name} was dropped here")

    def _close_memory(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        if self._layout_fd is not None:
            os.close(self._layout_fd)
            self._layout_fd = None
        self.region.close()
