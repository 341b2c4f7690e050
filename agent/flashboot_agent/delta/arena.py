"""Applying a delta to an arena in memory that no engine is using, in place; and putting right what a crash left.

    trailer (open_delta) → versions and base digests → window by window: decode, the way back kept, words kept, write,
    result digests → the reverse delta gets its name → commit (the journal goes)

Holds always: on any error the arena is bit for bit as before, or, when this process dies, the journal is there and
`recover` makes it the base or the result (`put_back` the base, without the delta). One update at a time has the
journal. Who calls sees to it that nobody reads or writes the arena meanwhile: for an arena that engines use, that is
the pause, which encloses the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from flashboot_agent import _native
from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch, DeltaDamaged
from flashboot_agent.delta import words
from flashboot_agent.delta.apply import require_base
from flashboot_agent.delta.disk import room_in
from flashboot_agent.delta.document import Metadata, runs_to_bytes
from flashboot_agent.delta.file import Delta, DeltaWriter, open_delta
from flashboot_agent.delta.journal import Going, Journal, Kept
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.window import Window, locate, told_of, windows

Point = Callable[[str], None]
"""Called with the name of each step; tests end the process there."""


def _pass(step: str) -> None:
    pass


@contextmanager
def _anyway(without_room: bool) -> Iterator[None]:
    """Raises OSError unless `without_room`: a disk that takes nothing must not hold an arena between versions. If this
    process died right then, its successor would find a chunk that is of neither version (Update._between)."""
    try:
        yield
    except OSError:
        if not without_room:
            raise


class _Journaled:
    """Memory and the journal of what is written to it."""

    def __init__(self, memory: memoryview, folder: Path, going: Going, threads: int, point: Point) -> None:
        """Raises DeltaDamaged for the journal of another arena."""
        self._memory, self._going, self._threads, self._point = memory, going, threads, point
        self._journal = Journal(folder)
        self._runs = words.table(going.parsed_runs(memory.nbytes))
        self._windows = list(windows(memory.nbytes))

    def _view(self, window: Window) -> memoryview:
        return self._memory[window.offset : window.end]

    def back(self, done: int, reverse: Path, *, without_room: bool = False) -> None:
        """From the state in which so many windows are the result's, and none is torn."""
        starts = self._journal.records()
        with _anyway(without_room):
            self._journal.cut(starts[done])
        for number in reversed(range(done)):
            window = self._windows[number]
            view = self._view(window)
            rows, bodies = self._journal.record(starts[number])
            with told_of(self._going.name):
                located = _native.DeltaWindow(
                    view, window.offset, self._runs, rows, bodies, reverse=False, threads=self._threads
                )
                with _anyway(without_room):
                    self._journal.keep(Kept(number, True, located.journal()))
                self._point("kept back")
                located.write(view, threads=self._threads)
            self._point("written back")
        self._forget(reverse)
        self._journal.end()
        self._point("back")

    def _forget(self, reverse: Path) -> None:
        """A way back from the version that did not come to be; an earlier one stays."""
        try:
            with open_delta(reverse, None) as delta:
                fits = delta.contents.metadata.base_version == self._going.base_version
        except DeltaDamaged:
            fits = False
        if not fits:
            reverse.unlink(missing_ok=True)

    def settle(self) -> int:
        """Put the one window back that may be torn; how many windows are the result's then."""
        starts, kept = self._journal.records(), self._journal.kept()
        if kept is None:
            done = 0  # a window is kept before it is written
        else:
            done = kept.number + kept.of_result
            if kept.number >= len(self._windows) or done >= len(starts):
                raise DeltaDamaged(f"{self._journal.folder}: window {kept.number} is kept, and has no way back")
            try:
                _native.delta_put_back(self._memory, kept.words)
            except _native.Malformed as error:
                raise DeltaDamaged(f"{self._journal.folder}: {error}") from error
        self._journal.cut(starts[done])
        return done


def put_back(memory: memoryview, folder: Path, reverse: Path, *, threads: int = 1) -> None:
    """Make an arena the base of the update that is going in `folder`, from the journal alone; nothing is done when none
    is going. The caller compares digests after it, as only the delta has those of the chunks.

    Raises DeltaDamaged, OSError; BadRequest when the update is going on."""
    journal = Journal(folder)
    with journal.alone():
        if (going := journal.going()) is not None:
            work = _Journaled(memory, folder, going, threads, _pass)
            work.back(work.settle(), reverse)


class Update(_Journaled):
    """One delta and one arena."""

    def __init__(
        self, delta: Delta, arena: MemorySource, folder: Path, *, threads: int = 1, point: Point | None = None
    ) -> None:
        """`folder`: for the journal, this arena's own. Raises DeltaBaseMismatch."""
        require_base(delta, arena)
        metadata = delta.contents.metadata
        going = Going(
            delta=str(delta.path),
            base_version=metadata.base_version,
            new_version=metadata.new_version,
            base_digest=metadata.base_digest,
            result_digest=metadata.result_digest,
            runs=runs_to_bytes(delta.contents.runs).hex(),
        )
        super().__init__(arena.memory, folder, going, threads, point or _pass)
        self._delta = delta

    def apply(self, version: int, digests: bytes, reverse: Path) -> None:
        """`version` and `digests`: of the arena as it is, known since it was verified. Afterwards it is the result, and
        `reverse` a delta back (not signed: it is this node's own).

        Raises DeltaBaseMismatch, DeltaDamaged, DiskFull, OSError; the arena is as before then. BadRequest when an
        update is going."""
        metadata = self._delta.contents.metadata
        with self._alone():
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
        with self._alone():
            if self._journal.going() != self._going:
                raise BadRequest(f"{self._journal.folder}: no update by {self._delta.path} is going there")
            done = self._between(self.settle())
            if to == "result":
                self._forward(done, reverse)
            else:
                self.back(done, reverse)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        metadata, folder = self._delta.contents.metadata, self._journal.folder
        with room_in(folder, f"{self._delta.path} ({metadata.versions()})"), self._journal.alone():
            yield

    def _forward(self, done: int, reverse: Path) -> None:
        try:
            for number in range(done, len(self._windows)):
                self._write(number)
                done = number + 1
            self._keep_reverse(reverse)
            self._journal.end()
        except BaseException:  # whatever it was: the arena becomes what it was
            self.back(done, reverse, without_room=True)
            raise
        self._point("committed")

    def _write(self, number: int) -> None:
        window = self._windows[number]
        view = self._view(window)
        located = locate(self._delta, window, view, self._runs, reverse=True, threads=self._threads)
        self._point("located")
        self._journal.append(*located.reverse())
        self._point("appended")
        self._journal.keep(Kept(number, False, located.journal()))
        self._point("kept")
        with told_of(self._going.name):
            located.write(view, threads=self._threads)
        self._point("written")

    def _between(self, done: int) -> int:
        """How many windows are the result, the others are the base: so many, or none after a way back that could not be
        noted. Raises DeltaDamaged: nothing can be put right then."""
        table, digests = self._delta.contents.table, chunk_digests(self._memory, self._threads)
        if digests == table.base:
            self._journal.cut(0)
            return 0
        middle = 8 * self._windows[done].first if done < len(self._windows) else len(digests)
        wanted = table.result[:middle] + table.base[middle:]
        if digests != wanted:
            chunk = next(at for at in range(len(digests) // 8) if digests[8 * at :][:8] != wanted[8 * at :][:8])
            raise DeltaDamaged(
                f"{self._journal.folder}: chunk {chunk} is of neither version of {self._delta.path} "
                f"({self._delta.contents.metadata.versions()}); load the arena anew"
            )
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
        with DeltaWriter(path, self._memory.nbytes, self._delta.contents.runs) as writer:
            for at in self._journal.records()[:-1]:
                rows, bodies = self._journal.record(at)
                writer.add(memoryview(rows).cast("Q"), [bodies])
            self._point("reverse written")
            writer.finish(back, None)
        self._point("reverse named")
