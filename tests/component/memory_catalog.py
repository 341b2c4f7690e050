"""Arenas in plain memory, as a chunk server's catalog: the contract of transport/base.py without a holder."""

from __future__ import annotations

import threading
import time

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import NotReady, UnknownArena
from flashboot_agent.transport.base import ArenaMeta


class MemoryArena:
    """One arena; `watermark` rises through `rise`, `drop` takes it away from its readers."""

    def __init__(self, arena: str, data: bytes, *, watermark: int | None = None, layout: bytes = b'{"a":1}') -> None:
        table = chunk_digests(data)
        self.data = data
        self.meta = ArenaMeta(
            arena=arena,
            identity="sha256:" + "ab" * 32,
            nbytes=len(data),
            layout=layout,
            chunk_digests=table,
            digest=root_digest(table),
        )
        self.changed = threading.Condition()
        self.watermark = len(data) if watermark is None else watermark
        self.dropped = False
        self.bytes_out = 0
        self.children: list[str] = []
        """Nodes with an open lease."""
        self.waiting = 0
        """Readers inside wait_watermark."""

    def rise(self, watermark: int) -> None:
        with self.changed:
            self.watermark = watermark
            self.changed.notify_all()

    def drop(self) -> None:
        with self.changed:
            self.dropped = True
            self.changed.notify_all()


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

    def wait_watermark(self, above: int, timeout: float) -> int:
        arena = self._arena
        deadline = time.monotonic() + timeout
        with arena.changed:
            arena.waiting += 1
            arena.changed.notify_all()
            while not arena.dropped and arena.watermark <= above and (left := deadline - time.monotonic()) > 0:
                arena.changed.wait(left)
            arena.waiting -= 1
            if arena.dropped:
                raise UnknownArena(f"{arena.meta.arena} was dropped")
            return arena.watermark

    def view(self, offset: int, nbytes: int) -> memoryview:
        assert offset + nbytes <= self._arena.watermark, "a server must not read above the watermark"
        view = memoryview(self._arena.data)[offset : offset + nbytes]
        self._views.append(view)
        return view

    def sent(self, nbytes: int) -> None:
        with self._arena.changed:
            self._arena.bytes_out += nbytes
            self._arena.changed.notify_all()

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


def until(condition: threading.Condition, predicate: object, seconds: float = 20) -> None:
    """Wait on a condition, or fail the test with a message."""
    assert callable(predicate)
    with condition:
        assert condition.wait_for(predicate, seconds), f"not within {seconds} s: {predicate}"
