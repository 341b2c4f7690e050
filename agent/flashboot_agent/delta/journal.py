"""What is on disk while an arena is between two versions, so that whoever finds it can put it right.

    going.json   from which version to which, by which delta; there while the arena is neither, removed last
    reverse      a record per window: how to get back from the result; appended before the window is written
    window       the words of the one window that is being written, as they were before

Holds always: each window is in `reverse`, and its words are in `window`, before its first byte changes; so every window
but the one in `window` is whole, and that one can be put back whatever became of it. `window` is replaced as a whole: a
process that dies while it keeps one leaves the one before. The files outlive this process, not the node: an arena that
does is a file, which is written anew instead (target.py).
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import ValidationError

from flashboot_agent.core.errors import BadRequest, DeltaDamaged
from flashboot_agent.delta.document import require_runs, runs_from_bytes
from flashboot_agent.delta.words import Run
from flashboot_agent.files import write_atomically
from flashboot_agent.wire.base import Digest, Text, WireModel

_RECORD: Final = struct.Struct("<QQI")
"""Of `reverse`: bytes of rows, bytes of bodies, CRC-32 of both."""
_WINDOW: Final = struct.Struct("<QBQI")
"""Of `window`: number, whether its words are the result's, bytes, CRC-32 of all of it."""


class Going(WireModel):
    """An arena is between these versions."""

    schema_version: Literal[1] = 1
    delta: Text
    """The file that is applied."""
    base_version: int
    new_version: int
    base_digest: Digest
    result_digest: Digest
    runs: str
    """The words of the arena, as the delta's file has them, in hexadecimal digits: the way back is in terms of them."""

    @property
    def name(self) -> str:
        """For messages: file and versions, as Delta's."""
        return f"{self.delta} ({self.base_version} → {self.new_version})"

    def parsed_runs(self, nbytes: int) -> list[Run]:
        """Of an arena of so many bytes. Raises DeltaDamaged."""
        try:
            runs = list(runs_from_bytes(bytes.fromhex(self.runs)))
            require_runs(runs, nbytes)
        except ValueError as error:
            raise DeltaDamaged(f"the journal of {self.name}: {error}") from error
        return runs


class Kept(NamedTuple):
    """What `window` has."""

    number: int
    of_result: bool
    words: bytes


class Journal:
    """Of one arena, in a folder of its own. Raises OSError, and DeltaDamaged for files that no run of ours leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._going, self._reverse, self._window = folder / "going.json", folder / "reverse", folder / "window"
        self._fresh = folder / "window.new"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes this arena meanwhile. Makes the folder. Raises BadRequest when somebody does."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _take(lock, self.folder)
            yield
        finally:
            os.close(lock)

    def going(self) -> Going | None:
        try:
            return Going.model_validate_json(self._going.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise DeltaDamaged(f"{self._going} is not what it was written as: {error}") from error

    def begin(self, going: Going) -> None:
        self._clean()  # an update's end may have removed going.json, and died then
        write_atomically(self._going, going.to_json(), mode=0o600)

    def end(self) -> None:
        """The arena is a version again. Raises OSError: it is not noted then."""
        self._going.unlink(missing_ok=True)
        with suppress(OSError):  # it is noted; the next update cleans, too
            self._clean()

    def _clean(self) -> None:
        for left in (self._reverse, self._window, self._fresh):
            left.unlink(missing_ok=True)

    def append(self, rows: bytes, bodies: bytes) -> None:
        record = _RECORD.pack(len(rows), len(bodies), zlib.crc32(bodies, zlib.crc32(rows)))
        with open(self._reverse, "ab") as file:
            file.write(record + rows + bodies)

    def records(self) -> list[int]:
        """Where each whole record of `reverse` begins, and where the last one ends."""
        starts = [0]
        with suppress(FileNotFoundError), open(self._reverse, "rb") as file:
            while self._record(file.fileno(), starts[-1]) is not None:
                rows, bodies, _ = _RECORD.unpack(os.pread(file.fileno(), _RECORD.size, starts[-1]))
                starts.append(starts[-1] + _RECORD.size + rows + bodies)
        return starts

    def record(self, at: int) -> tuple[bytes, bytes]:
        """Rows and bodies. Raises DeltaDamaged."""
        with open(self._reverse, "rb") as file:
            found = self._record(file.fileno(), at)
        if found is None:
            raise DeltaDamaged(f"{self._reverse}: at byte {at}: the record differs from its checksum")
        return found

    @staticmethod
    def _record(fd: int, at: int) -> tuple[bytes, bytes] | None:
        """None where there is none, or only a part of one."""
        head = os.pread(fd, _RECORD.size, at)
        if len(head) < _RECORD.size:
            return None
        rows, bodies, crc = _RECORD.unpack(head)
        if rows + bodies > os.fstat(fd).st_size - at - _RECORD.size:
            return None
        data = os.pread(fd, rows + bodies, at + _RECORD.size)
        return (data[:rows], data[rows:]) if zlib.crc32(data) == crc else None

    def cut(self, at: int) -> None:
        """Records from here on are of windows that were not written."""
        with suppress(FileNotFoundError):
            os.truncate(self._reverse, at)

    def keep(self, kept: Kept) -> None:
        """In place of what was kept before."""
        body = _WINDOW.pack(kept.number, kept.of_result, len(kept.words), 0)[:-4] + kept.words
        try:
            with open(self._fresh, "wb") as file:
                file.write(zlib.crc32(body).to_bytes(4, "little") + body)
            self._fresh.replace(self._window)
        except BaseException:  # whatever it was: a part of it takes room where there may be none
            self._fresh.unlink(missing_ok=True)
            raise

    def kept(self) -> Kept | None:
        """None when no window was kept yet, so that none was written. Raises DeltaDamaged."""
        try:
            data = self._window.read_bytes()
        except FileNotFoundError:
            return None
        crc, body = data[:4], data[4:]
        if len(body) < _WINDOW.size - 4 or zlib.crc32(body).to_bytes(4, "little") != crc:
            raise DeltaDamaged(f"{self._window} differs from its checksum")
        number, of_result, _, _ = _WINDOW.unpack(body[: _WINDOW.size - 4] + bytes(4))
        return Kept(number, bool(of_result), body[_WINDOW.size - 4 :])


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadRequest(f"{folder}: another update of this arena is going on; one at a time") from None
