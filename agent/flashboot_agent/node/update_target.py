"""An arena of this node as what a receiver brings forward (sync/receive.py): barred, paused, written, served again.

    engines looked at, barred, in one step → the record says `updating` → readers waited for → engines paused
    → bytes (delta/arena.py) → the record has the new version → engines resumed, readers let in

Holds always: no byte changes before the record says between which versions the arena is; nobody reads a byte meanwhile;
after an error the arena is what it was, compared digest by digest, or it is dropped.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import FlashBootError
from flashboot_agent.delta import words
from flashboot_agent.delta.arena import put_back
from flashboot_agent.delta.file import Delta
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.logs import Log
from flashboot_agent.memory.base import Mapping
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.pause import Engine, paused
from flashboot_agent.node.record import Between
from flashboot_agent.sync.resident import JOURNAL, REVERSE, ResidentArena
from flashboot_agent.wire.layout import Layout

log = Log(__name__)

MOST_THREADS: Final = 8

Version = tuple[int, bytes]
"""With its table of digests."""


class Torn(Exception):
    """The arena is of no version, and can't be put right: it has to go."""


class Host(Protocol):
    """Who runs the update. Called from its thread."""

    def begin(self, arena: Arena, between: Between) -> Sequence[Engine]:
        """Bar it, if nobody has it who can't be paused; its record says `updating` then. Raises ArenaInUse, NotReady,
        Cancelled; nothing is changed then."""

    def begun(self) -> None:
        """Nobody reads it any more, and no engine runs: bytes change now."""

    def served(self) -> None:
        """It has the new version, and is read again."""

    def point(self, step: str) -> None:
        """See delta/arena.py. What it raises at `located` ends the update, and all is put back."""

    def left(self) -> float:
        """Seconds. Raises DeadlineExceeded, Cancelled."""


class ArenaTarget:
    """Target (sync/receive.py). Made for one update; the caller pins the arena."""

    subject: Literal["arena", "checkpoint"] = "arena"

    def __init__(self, arena: Arena, node: str, folder: Path, host: Host, drain_seconds: float) -> None:
        """`folder`: this arena's own, for the journal. `drain_seconds`: for those who read it."""
        self._arena, self._node, self._folder, self._host = arena, node, folder, host
        self._drain = drain_seconds
        self.content, self.nbytes = arena.meta.layout_digest, arena.nbytes
        self._runs = words.of_layout(Layout.from_bytes(arena.meta.layout))
        self._threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))

    @property
    def version(self) -> int:
        return self._arena.record.version

    @property
    def digest(self) -> str:
        return self._arena.meta.digest

    def __str__(self) -> str:
        return f"{self._arena.name} on node {self._node}, version {self.version}"

    def apply(self, delta: Delta) -> None:
        """Raises what the host and the engines raise, ArenaInUse, DeltaBaseMismatch, DeltaDamaged, DiskFull, OSError:
        it is as before then; Torn."""
        arena, metadata = self._arena, delta.contents.metadata
        version, digests = self.version, arena.meta.chunk_digests
        engines = self._host.begin(
            arena,
            Between(
                base=version,
                new=metadata.new_version,
                base_digest=arena.meta.digest,
                new_digest=metadata.result_digest,
            ),
        )
        known: Version | None = version, digests
        try:
            arena.leases.wait_unread(min(self._drain, self._host.left()))
            with paused(engines, self._host.left()):
                self._host.begun()
                mapping = arena.region.map_for_update()
                known = None
                known, trouble = self._write(delta, mapping, digests)
                arena.end_update(*known)
            if trouble is not None:
                raise trouble
            self._host.served()
        finally:
            if arena.state == "updating" and known is not None:
                arena.end_update(*known)

    def _write(self, delta: Delta, mapping: Mapping, digests: bytes) -> tuple[Version, BaseException | None]:
        """What it is then, and why it is not the new version. Raises Torn."""
        version = self.version
        try:
            # The record said a version: what lies there is of another arena, or of what was settled since.
            shutil.rmtree(self._folder / JOURNAL, ignore_errors=True)
            resident = ResidentArena(
                MemorySource(mapping.view, self._runs, self.content, str(self)),
                version,
                digests,
                self._folder,
                threads=self._threads,
                point=self._host.point,
            )
            resident.apply(delta)
            return (resident.version, resident.digests), None
        except BaseException as error:  # noqa: BLE001 - whatever it was (it is raised later): what the memory is now has to be found out
            _let_go(error)
            self._require(mapping.view, digests)
            return (version, digests), error
        finally:
            try:
                mapping.close()
            except BufferError:  # it goes with the last view, and nobody writes through that any more
                log.error("a view of an updated arena stayed", arena=self._arena.name)

    def _require(self, memory: memoryview, digests: bytes) -> None:
        """It is what it was. Raises Torn."""
        trouble = ""
        try:
            put_back(memory, self._folder / JOURNAL, self._folder / REVERSE, threads=self._threads)
        except (FlashBootError, OSError) as error:
            trouble = f" ({error})"
            _let_go(error)
        if chunk_digests(memory, self._threads) != digests:
            raise Torn(f"{self}: an update failed, and the bytes from before could not be put back{trouble}") from None


def _let_go(error: BaseException) -> None:
    """Frames that it passed have views of the mapping, which could not be closed then."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__
