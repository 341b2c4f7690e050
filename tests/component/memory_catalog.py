"""Arenas in plain memory, as a server's catalog and as a child's sink: the contract of transport/base.py without a
holder."""

from __future__ import annotations

import os
import threading

from flashboot_agent._native import BYTES_OUT, EgressBucket, Marks
from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import NotReady, UnknownArena
from flashboot_agent.core.lanes import lane_bounds
from flashboot_agent.memory import memfd
from flashboot_agent.transport.base import ArenaMeta, Pull, Sink

MIB = 1 << 20


def new_marks(nbytes: int, lanes: int = 1) -> Marks:
    """Marks of an arena without a byte yet."""
    fd = memfd.create("record", 4096)
    try:
        return Marks(fd, nbytes, lane_bounds(nbytes, lanes))
    finally:
        os.close(fd)


class MemoryArena:
    """One arena that children read; `rise` lifts the marks of lane 0, `drop` takes it away from its readers."""

    def __init__(
        self,
        arena: str,
        data: bytes | bytearray,
        *,
        watermark: int | None = None,
        layout: bytes = b'{"a":1}',
        lanes: int = 1,
        table: bytes | None = None,
    ) -> None:
        """`table` is the digest table, where it is not that of `data` as it is now."""
        table = table or chunk_digests(bytes(data))
        self.data = data
        self.marks = new_marks(len(data), lanes)
        self.meta = ArenaMeta(
            arena=arena,
            identity="sha256:" + "ab" * 32,
            nbytes=len(data),
            layout=layout,
            chunk_digests=table,
            digest=root_digest(table),
        )
        self.changed = threading.Condition()
        self.egress = EgressBucket(0)
        self.children: list[str] = []
        """Nodes with an open lease."""
        self.dropped = False
        if watermark is None:
            self.marks.fill()
        elif watermark:
            self.rise(watermark)

    @property
    def bytes_out(self) -> int:
        return self.marks.counter(BYTES_OUT)

    def rise(self, watermark: int) -> None:
        self.marks.set_verified(0, watermark)

    def drop(self) -> None:
        self.dropped = True
        self.marks.close()


class MemoryLease:
    def __init__(self, arena: MemoryArena, child: str) -> None:
        self._arena, self._child = arena, child
        self._views: list[memoryview] = []
        with arena.changed:
            arena.children.append(child)
            arena.changed.notify_all()

    @property
    def meta(self) -> ArenaMeta:
        return self._arena.meta

    @property
    def marks(self) -> Marks:
        return self._arena.marks

    @property
    def memory(self) -> memoryview:
        self._views.append(memoryview(self._arena.data))
        return self._views[-1]

    @property
    def buckets(self) -> list[EgressBucket]:
        return [self._arena.egress]

    def close(self) -> None:
        for view in self._views:
            try:
                len(view)
            except ValueError:
                continue  # released, as it must be
            raise AssertionError("the server closed its lease with a view alive")
        with self._arena.changed:
            self._arena.children.remove(self._child)
            self._arena.changed.notify_all()


class MemoryCatalog:
    def __init__(self, *arenas: MemoryArena) -> None:
        self.arenas = {arena.meta.arena: arena for arena in arenas}
        self.not_ready: set[str] = set()

    def open(self, arena: str, child: str) -> MemoryLease:
        if arena in self.not_ready:
            raise NotReady(f"{arena} has no metadata yet")
        if arena not in self.arenas or self.arenas[arena].dropped:
            raise UnknownArena(f"no arena {arena} here; it has {sorted(self.arenas)}")
        return MemoryLease(self.arenas[arena], child)


class Target:
    """A child's arena in plain memory."""

    def __init__(self, nbytes: int, *, lanes: int = 1) -> None:
        self.data = bytearray(nbytes)
        self.marks = new_marks(nbytes, lanes)

    def resume(self, data: bytes, received: int) -> None:
        """As if so many bytes of lane 0 had come before, from another parent."""
        self.data[:received] = data[:received]
        self.marks.set_verified(0, received // MIB * MIB if received < len(data) else (len(data) - 1) // MIB * MIB)
        self.marks.set_received(0, received)

    def sink(self, pull: Pull, lane: int = 0, *, request_bytes: int = MIB) -> Sink:
        return Sink(memoryview(self.data), self.marks, lane, pull.meta.chunk_digests, request_bytes)


def until(condition: threading.Condition, predicate: object, seconds: float = 20) -> None:
    """Wait on a condition, or fail the test with a message."""
    assert callable(predicate)
    with condition:
        assert condition.wait_for(predicate, seconds), f"not within {seconds} s: {predicate}"
