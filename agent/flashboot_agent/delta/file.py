"""Delta files on disk: written whole or not at all, and opened only as what their trailer says.

Holds always: a file has its name only when every byte of it is on disk; a writer that fails leaves nothing. What is
before the bodies is compared with the trailer when a file is opened, and each body with its span when it is read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

from flashboot_agent.core.checkpoint import open_file
from flashboot_agent.core.errors import DeltaDamaged
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta import trailer
from flashboot_agent.delta.disk import open_alone
from flashboot_agent.delta.document import (
    HEADER,
    RAW,
    Contents,
    Header,
    Metadata,
    Table,
    read_contents,
    read_header,
)
from flashboot_agent.delta.spans import Bodies, FileBodies, SpanDigests, damaged
from flashboot_agent.delta.words import Run
from flashboot_agent.files import sync_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_STEP: Final = 1 << 20
TEMPORARY: Final = ".writing"


@dataclass(frozen=True)
class Delta:
    """An open delta whose front is vouched for. Of one that is still being received, bodies are there as they come."""

    path: Path
    header: Header
    contents: Contents
    front_digest: str
    """Of all that is before the bodies: what a chain names it by."""
    signer: str
    offsets: list[int]
    source: Bodies

    @property
    def name(self) -> str:
        """For messages: file and versions."""
        return f"{self.path} ({self.contents.metadata.versions()})"

    def bodies(self, first: int, last: int) -> bytes:
        """Of chunks [first, last), one behind the other, compared with their spans. Raises as Bodies.read."""
        return self.source.read(self.offsets[first], self.offsets[last])

    def require_whole(self) -> None:
        """Compare all bodies. Raises as Bodies.require_whole."""
        self.source.require_whole()


@contextmanager
def open_delta(path: Path, trusted: Sequence[Ed25519PublicKey] | None) -> Iterator[Delta]:
    """Compare what is before the bodies with the trailer, and read it. `trusted`: see trailer.check.

    Raises DeltaDamaged, DeltaUntrusted."""
    with open_file(path, DeltaDamaged) as file:
        fd = file.fileno()
        try:
            header = read_header(os.pread(fd, HEADER.size, 0), path)
            _require_size(os.fstat(fd).st_size, header, path)
            front = os.pread(fd, header.bodies_at, 0)
            end = os.pread(fd, trailer.TRAILER.size, header.trailer_at)
        except OSError as error:
            raise DeltaDamaged(f"{path} can't be read: {error.strerror}") from error
        signer = trailer.check(end, hashlib.sha256(front), trusted, path)
        contents = read_contents(header, front[HEADER.size :], path)
        bodies = FileBodies(fd, header.bodies_at, header.body_bytes, contents.spans, damaged(path))
        yield Delta(path, header, contents, document_digest(front), signer, contents.offsets(), bodies)


def _require_size(size: int, header: Header, path: Path) -> None:
    if size != header.file_bytes:
        how = "is cut off" if size < header.file_bytes else "goes on behind its end"
        raise DeltaDamaged(f"{path} {how}: it has {size} bytes, its header speaks of {header.file_bytes}")


class DeltaWriter:
    """Takes chunks in order. A context manager: without `finish`, nothing is left. Bodies wait in a file without
    a name, since what is before them is known at the end only."""

    def __init__(self, path: Path, nbytes: int, runs: list[Run]) -> None:
        """Raises BadRequest when another one writes this file, OSError."""
        self.path = path
        self._nbytes = nbytes
        self._runs = runs
        self._modes: list[int] = []
        self._sizes: list[int] = []
        self._base, self._result = bytearray(), bytearray()
        self._spans = SpanDigests()
        self.changed = 0
        self._temporary = path.with_name(path.name + TEMPORARY)
        self._named = False
        self._file = open_alone(self._temporary, path)
        try:
            self._bodies = TemporaryFile(dir=path.parent)  # noqa: SIM115 - __exit__ closes it
        except BaseException:  # whatever it was: there will be no __exit__
            self._temporary.unlink()
            self._file.close()
            raise

    def add(self, rows: memoryview, bodies: Sequence[bytes | memoryview]) -> None:
        """`rows` as `_native` gives them, native u64; `bodies` in the same order, without empty ones.

        Raises OSError."""
        for at in range(0, len(rows), 5):
            mode, size, base, result, changed = rows[at : at + 5]
            self._modes.append(mode)
            self._sizes.append(size)
            self._base += base.to_bytes(8, "little")
            self._result += result.to_bytes(8, "little")
            self.changed += changed
        for body in bodies:
            self._spans.feed(body)
            self._bodies.write(body)

    @property
    def table(self) -> Table:
        return Table(bytes(self._base), bytes(self._result), self._modes, self._sizes)

    def finish(self, metadata: Metadata, key: Ed25519PrivateKey | None) -> Contents:
        """Give the file its name. Raises OSError."""
        contents = Contents(metadata, self._nbytes, self._runs, self.table, self._spans.finish())
        file, front = self._file, contents.to_bytes()
        file.write(front)
        self._bodies.seek(0)
        shutil.copyfileobj(self._bodies, file, _STEP)
        file.write(trailer.make(hashlib.sha256(front), key))
        file.flush()
        os.fsync(file.fileno())
        self._temporary.rename(self.path)
        self._named = True
        sync_folder(self.path.parent)
        return contents

    def __enter__(self) -> DeltaWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._named:
                self._temporary.unlink(missing_ok=True)
        finally:
            for file in (self._bodies, self._file):
                with suppress(OSError):  # what is not written yet, a full disk refuses once more
                    file.close()


def bodies_of(rows: memoryview, out: memoryview, raw: memoryview, place: int) -> list[memoryview]:
    """The bodies that `_native.delta_encode` left in `out`, a place of `place` bytes each; raw ones are `raw`'s."""
    found = []
    for chunk, at in enumerate(range(0, len(rows), 5)):
        mode, size = rows[at], rows[at + 1]
        if size:
            found.append((raw if mode == RAW else out)[chunk * place : chunk * place + size])
    return found
