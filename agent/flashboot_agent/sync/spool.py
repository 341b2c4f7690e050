"""The file of a delta that is being received, and how far it is right.

Holds always: `verified` bytes were compared with what the chain names (the front by its digest, each span by the
front's, the trailer by its signature), and this number only grows; so whoever reads below it reads what was published.
What lies behind it is a part of a span, and is compared when the rest of that has come. A file that another process
left is taken up the same way: read, compared, and cut where it is wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashboot_agent.core.errors import BadRequest, DeltaDamaged
from flashboot_agent.delta import trailer
from flashboot_agent.delta.document import HEADER, Contents, Header, read_contents, read_header
from flashboot_agent.delta.spans import SPAN, digest_of
from flashboot_agent.memory.memfd import write_all
from flashboot_agent.sync.chain import Step

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PART: Final = ".part"
_STEP: Final = 1 << 20


def part_name(step: Step) -> str:
    """In a spool folder: of this very delta, whatever else is published under its versions one day."""
    return f"{step.file}.{step.front_digest.rpartition(':')[2][:16]}{PART}"


class Spool:
    """A context manager, for its descriptor. `front` is there, whole and believed, once `contents` is."""

    def __init__(
        self,
        folder: Path,
        step: Step,
        trusted: Sequence[Ed25519PublicKey] | None,
        name: str,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """`name`: of the delta, for messages. `moved`: called when more is verified.

        Raises BadRequest when another process receives this one there, OSError."""
        self.path, self.step, self.name = folder / part_name(step), step, name
        self._trusted, self._moved = trusted, moved
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.fd)
            raise BadRequest(f"{self.path}: another process receives there; give each its own folder") from None
        self.have = self.verified = 0
        self.header: Header | None = None
        self.contents: Contents | None = None
        self._front = hashlib.sha256()
        self._begin_unit()

    @property
    def whole(self) -> bool:
        return self.verified == self.step.nbytes

    def take_up(self) -> None:
        """Compare what another process left. Raises OSError."""
        size = min(os.fstat(self.fd).st_size, self.step.nbytes)
        with suppress(DeltaDamaged):  # `have` is at the last byte that is right: it is received again from there
            while self.have < size and (piece := os.pread(self.fd, min(_STEP, size - self.have), self.have)):
                self._take(piece, write=False)
        os.ftruncate(self.fd, self.have)

    def feed(self, piece: bytes) -> None:
        """The next bytes; what is behind the end is left alone. Raises DeltaDamaged, and has forgotten all that was not
        verified then; DeltaUntrusted, OSError."""
        self._take(piece, write=True)

    def _take(self, piece: bytes, *, write: bool) -> None:
        view = memoryview(piece)
        while view and not self.whole:
            part = view[: self._end - self.have]
            if write:
                write_all(self.fd, part, self.have)
            self._hash.update(part)
            self.have += len(part)
            view = view[len(part) :]
            if self.have == self._end:
                try:
                    self._end_unit()
                except DeltaDamaged:
                    self.have = self.verified
                    self._begin_unit()
                    raise

    def _begin_unit(self) -> None:
        self._hash = hashlib.sha256()
        if self.contents is None or self.header is None:
            self.header, self._end = None, HEADER.size
        elif self.verified < self.header.trailer_at:
            self._end = min(self.verified + SPAN, self.header.trailer_at)
        else:
            self._end = self.step.nbytes

    def _end_unit(self) -> None:
        if self.header is None:
            self._end = self._read_header().bodies_at
            return
        if self.contents is None:
            self.contents = self._read_front(self.header)
        elif self.have <= self.header.trailer_at:
            number = (self.verified - self.header.bodies_at) // SPAN
            if self._hash.digest() != digest_of(self.contents.spans, number):
                raise DeltaDamaged(f"{self.name} differs from the digest of its span {number} (byte {self.verified})")
        else:
            data = os.pread(self.fd, trailer.TRAILER.size, self.header.trailer_at)
            trailer.check(data, self._front.copy(), self._trusted, self.name)
        self.verified = self.have
        self._begin_unit()
        self._moved()

    def _read_header(self) -> Header:
        header = read_header(os.pread(self.fd, HEADER.size, 0), self.name)
        if header.file_bytes != self.step.nbytes:
            raise DeltaDamaged(
                f"{self.name} has {header.file_bytes} bytes by its header, the chain says {self.step.nbytes}"
            )
        self.header = header
        return header

    def _read_front(self, header: Header) -> Contents:
        if "sha256:" + self._hash.hexdigest() != self.step.front_digest:
            raise DeltaDamaged(f"{self.name} differs from the digest of its front in the chain")
        self._front = self._hash
        return read_contents(header, os.pread(self.fd, header.bodies_at - HEADER.size, HEADER.size), self.name)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
