"""Applying a delta to an arena in memory that no engine is using, in place; and putting right what a crash left.

    trailer (open_delta) → versions and base digests → window by window: decode, the way back kept, words kept, write,
    result digests → the reverse delta gets its name → commit (the journal goes)

Holds always: on any error the arena is bit for bit as before, or, when this process dies, the journal is there and
`recover` makes it the base or the result. Who calls sees to it that nobody reads or writes the arena meanwhile: for an
arena that engines use, that is the pause, which encloses the call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from flashboot_agent import _native
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch, DeltaDamaged
from flashboot_agent.delta import words
from flashboot_agent.delta.apply import require_base
from flashboot_agent.delta.document import Metadata
from flashboot_agent.delta.file import Delta, DeltaWriter
from flashboot_agent.delta.journal import Going, Journal, Kept
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.window import Window, locate, told_of, windows

Point = Callable[[str], None]
"""Called with the name of each step; tests end the process there."""


def _pass(step: str) -> None:
    pass


class Update:
    """One delta and one arena."""

    def __init__(
        self, delta: Delta, arena: MemorySource, folder: Path, *, threads: int = 1, point: Point = _pass
    ) -> None:
        """`folder`: for the journal, this arena's own. Raises DeltaBaseMismatch."""
        require_base(delta, arena)
        self._delta, self._arena, self._threads, self._point = delta, arena, threads, point
        self._journal = Journal(folder)
        self._runs = words.table(delta.contents.runs)
        self._windows = list(windows(arena.nbytes))
        metadata = delta.contents.metadata
        self._going = Going(
            delta=str(delta.path),
            base_version=metadata.base_version,
            new_version=metadata.new_version,
            base_digest=metadata.base_digest,
            result_digest=metadata.result_digest,
        )

    def apply(self, version: int, digests: bytes, reverse: Path) -> None:
        """`version` and `digests`: of the arena as it is, known since it was verified. Afterwards it is the result, and
        `reverse` a delta back (not signed: it is this node's own).

        Raises DeltaBaseMismatch, DeltaDamaged, OSError; the arena is as before then. BadRequest when an update is
        going."""
        metadata = self._delta.contents.metadata
        if self._journal.going() is not None:
            raise BadRequest(f"{self._journal.folder}: the arena is between two versions; recover it first")
        if version != metadata.base_version:
            raise DeltaBaseMismatch(
                f"{self._delta.path} is for versions {metadata.versions()}, the arena has version {version}"
            )
        if digests != self._delta.contents.table.base:
            raise DeltaBaseMismatch(f"{self._delta.path}: version {version} there has other bytes than the arena's")
        self._journal.begin(self._going)
        self._point("begun")
        self._forward(0, reverse)

    def recover(self, to: Literal["base", "result"], reverse: Path) -> None:
        """Make the arena this version, from whatever a crash left. Raises as `apply`."""
        if self._journal.going() != self._going:
            raise BadRequest(f"{self._journal.folder}: no update by {self._delta.path} is going there")
        done = self._settle()
        if to == "result":
            self._forward(done, reverse)
        else:
            self._back(done)
            reverse.unlink(missing_ok=True)

    def _forward(self, done: int, reverse: Path) -> None:
        try:
            for number in range(done, len(self._windows)):
                self._write(number)
                done = number + 1
            self._keep_reverse(reverse)
        except BaseException:  # whatever it was: the arena becomes what it was
            self._back(done)
            raise
        self._journal.end()
        self._point("committed")

    def _view(self, window: Window) -> memoryview:
        return self._arena.view(window.offset, window.end - window.offset)

    def _write(self, number: int) -> None:
        window = self._windows[number]
        view = self._view(window)
        located = locate(self._delta, window, view, self._runs, reverse=True, threads=self._threads)
        self._point("located")
        self._journal.append(*located.reverse())
        self._point("appended")
        self._journal.keep(Kept(number, False, located.journal()))
        self._point("kept")
        with told_of(self._delta):
            located.write(view, threads=self._threads)
        self._point("written")

    def _back(self, done: int) -> None:
        """From the state in which so many windows are the result's, and none is torn."""
        starts = self._journal.records()
        for number in reversed(range(done)):
            window = self._windows[number]
            view = self._view(window)
            rows, bodies = self._journal.record(starts[number])
            with told_of(self._delta):
                located = _native.DeltaWindow(
                    view, window.offset, self._runs, rows, bodies, reverse=False, threads=self._threads
                )
                self._journal.keep(Kept(number, True, located.journal()))
                self._point("kept back")
                located.write(view, threads=self._threads)
            self._point("written back")
        self._journal.end()
        self._point("back")

    def _settle(self) -> int:
        """Put the one window back that may be torn; how many windows are the result's then."""
        starts, kept = self._journal.records(), self._journal.kept()
        if kept is None:
            done = max(0, len(starts) - 2)  # a window is kept right after its record, and written after that
        else:
            done = kept.number + kept.of_result
            if kept.number >= len(self._windows) or done >= len(starts):
                raise DeltaDamaged(f"{self._journal.folder}: window {kept.number} is kept, and has no way back")
            try:
                _native.delta_put_back(self._arena.memory, kept.words)
            except _native.Malformed as error:
                raise DeltaDamaged(f"{self._journal.folder}: {error}") from error
        self._journal.cut(starts[done])
        return done

    def _keep_reverse(self, path: Path) -> None:
        metadata = self._delta.contents.metadata
        back = Metadata(
            subject=metadata.subject,
            content=metadata.content,
            base_version=metadata.new_version,
            new_version=metadata.base_version,
            base_digest=metadata.result_digest,
            result_digest=metadata.base_digest,
            changed=metadata.changed,
        )
        with DeltaWriter(path, self._arena.nbytes, self._delta.contents.runs) as writer:
            for at in self._journal.records()[:-1]:
                rows, bodies = self._journal.record(at)
                writer.add(memoryview(rows).cast("Q"), [bodies])
            self._point("reverse written")
            writer.finish(back, None)
        self._point("reverse named")
