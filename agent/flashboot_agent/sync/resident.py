"""An arena in memory that knows its version: what a receiver brings forward on a node."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from flashboot_agent.core.digest import root_digest
from flashboot_agent.delta.arena import Point, Update
from flashboot_agent.delta.file import Delta
from flashboot_agent.delta.source import MemorySource

JOURNAL: Final = "journal"
REVERSE: Final = "reverse.delta"
"""In an arena's folder."""


class ResidentArena:
    """Nobody reads or writes the memory meanwhile, as for Update. In its folder: the journal while a delta is applied,
    and `reverse.delta`, the way back from the last one."""

    def __init__(
        self,
        source: MemorySource,
        version: int,
        digests: bytes,
        folder: Path,
        *,
        threads: int = 1,
        point: Point | None = None,
    ) -> None:
        """`version` and `digests` (per chunk): as they were verified when the arena was loaded or cloned. `point`: see
        Update."""
        self._source, self._folder, self._threads, self._point = source, folder, threads, point
        self.version, self.digests = version, digests

    @property
    def subject(self) -> Literal["arena", "checkpoint"]:
        return self._source.subject

    @property
    def content(self) -> str:
        return self._source.content

    @property
    def nbytes(self) -> int:
        return self._source.nbytes

    @property
    def digest(self) -> str:
        return root_digest(self.digests)

    def apply(self, delta: Delta) -> None:
        """Raises DeltaBaseMismatch, DeltaDamaged, OSError: it is as before then. BadRequest while an update that a
        crash stopped waits to be recovered."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        update = Update(delta, self._source, self._folder / JOURNAL, threads=self._threads, point=self._point)
        update.apply(self.version, self.digests, self._folder / REVERSE)
        self.version = delta.contents.metadata.new_version
        self.digests = delta.contents.table.result

    def __str__(self) -> str:
        return f"{self._source}, version {self.version}"
