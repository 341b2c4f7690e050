"""Delta files on disk: written whole or not at all, and opened only as what their trailer says.

Holds always: a file has its name only when every byte of it is on disk; a writer that fails leaves nothing. The file is
read by the descriptor whose bytes were compared with the trailer; who can write to it meanwhile can still not make a
wrong result pass for a right one by accident, as each chunk is compared with its digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashboot_agent.core.checkpoint import open_file
from flashboot_agent.core.errors import DeltaDamaged
from flashboot_agent.delta import trailer
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
from flashboot_agent.delta.words import Run
from flashboot_agent.files import sync_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_STEP: Final = 1 << 20
TEMPORARY: Final = ".writing"


@dataclass(frozen=True)
class Delta:
    """An open delta that its trailer vouches for."""

    path: Path
    header: Header
    contents: Contents
    signer: str
    fd: int
    offsets: list[int]

    def bodies(self, first: int, last: int) -> bytes:
        """Of chunks [first, last), one behind the other. Raises DeltaDamaged."""
        begin, end = self.offsets[first], self.offsets[last]
        data = os.pread(self.fd, end - begin, self.header.bodies_at + begin)
        if len(data) < end - begin:
            raise DeltaDamaged(f"{self.path} was cut while it was read: chunk {first}")
        return data


@contextmanager
def open_delta(path: Path, trusted: Sequence[Ed25519PublicKey] | None) -> Iterator[Delta]:
    """Compare all of it with its trailer, and read what is before the bodies. `trusted`: see trailer.check.

    Raises DeltaDamaged, DeltaUntrusted."""
    with open_file(path, DeltaDamaged) as file:
        fd = file.fileno()
        try:
            header = read_header(os.pread(fd, HEADER.size, 0), path)
            _require_size(os.fstat(fd).st_size, header, path)
            signer = trailer.check(
                os.pread(fd, trailer.TRAILER.size, header.trailer_at), _digest(fd, header.trailer_at), trusted, path
            )
            contents = read_contents(header, os.pread(fd, header.bodies_at - HEADER.size, HEADER.size), path)
        except OSError as error:
            raise DeltaDamaged(f"{path} can't be read: {error.strerror}") from error
        yield Delta(path, header, contents, signer, fd, contents.offsets())


def _require_size(size: int, header: Header, path: Path) -> None:
    wanted = header.trailer_at + trailer.TRAILER.size
    if size != wanted:
        how = "is cut off" if size < wanted else "goes on behind its end"
        raise DeltaDamaged(f"{path} {how}: it has {size} bytes, its header speaks of {wanted}")


def _digest(fd: int, end: int) -> hashlib._Hash:
    digest = hashlib.sha256()
    for at in range(0, end, _STEP):
        digest.update(os.pread(fd, min(_STEP, end - at), at))
    return digest


class DeltaWriter:
    """Takes chunks in order. A context manager: without `finish`, nothing is left. Bodies wait in a file beside the
    final one, since what is before them is known at the end only."""

    def __init__(self, path: Path, nbytes: int, runs: list[Run]) -> None:
        """Raises OSError."""
        self.path = path
        self._nbytes = nbytes
        self._runs = runs
        self._modes: list[int] = []
        self._sizes: list[int] = []
        self._base, self._result = bytearray(), bytearray()
        self.changed = 0
        self._bodies_path = path.with_name(path.name + ".bodies" + TEMPORARY)
        self._final_path = path.with_name(path.name + TEMPORARY)
        self._bodies = open(self._bodies_path, "w+b")  # noqa: SIM115 - __exit__ closes it

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
            self._bodies.write(body)

    @property
    def table(self) -> Table:
        return Table(bytes(self._base), bytes(self._result), self._modes, self._sizes)

    def finish(self, metadata: Metadata, key: Ed25519PrivateKey | None) -> Contents:
        """Give the file its name. Raises OSError."""
        contents = Contents(metadata, self._nbytes, self._runs, self.table)
        digest = hashlib.sha256()
        with open(self._final_path, "wb") as file:
            front = contents.to_bytes()
            digest.update(front)
            file.write(front)
            self._bodies.seek(0)
            while piece := self._bodies.read(_STEP):
                digest.update(piece)
                file.write(piece)
            file.write(trailer.make(digest, key))
            file.flush()
            os.fsync(file.fileno())
        self._final_path.rename(self.path)
        sync_folder(self.path.parent)
        return contents

    def __enter__(self) -> DeltaWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._bodies.close()  # writes what it still has, which a full disk refuses once more
        finally:
            for left in (self._bodies_path, self._final_path):
                with suppress(FileNotFoundError):
                    left.unlink()


def bodies_of(rows: memoryview, out: memoryview, raw: memoryview, place: int) -> list[memoryview]:
    """The bodies that `_native.delta_encode` left in `out`, a place of `place` bytes each; raw ones are `raw`'s."""
    found = []
    for chunk, at in enumerate(range(0, len(rows), 5)):
        mode, size = rows[at], rows[at + 1]
        if size:
            found.append((raw if mode == RAW else out)[chunk * place : chunk * place + size])
    return found
