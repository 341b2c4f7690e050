"""The bodies of a delta in spans of one size, each with a SHA-256 that the signed front names.

So each span can be believed when it comes, alone: a receiver decodes what it has while the rest is on its way, and a
download that broke goes on behind the last span that was right.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from flashboot_agent.core.errors import DeltaDamaged

SPAN: Final = 1 << 16
"""Bytes; the last one may have fewer. What 20 MiB of weights need at 0.65 % changed; digests are 0.05 % of it."""
DIGEST: Final = 32


def span_count(body_bytes: int) -> int:
    return -(-body_bytes // SPAN)


def digest_of(spans: bytes, number: int) -> bytes:
    return spans[DIGEST * number : DIGEST * (number + 1)]


class SpanDigests:
    """What a writer of bodies makes as they come, however they are cut."""

    def __init__(self) -> None:
        self._done, self._open, self._left = bytearray(), hashlib.sha256(), SPAN

    def feed(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while view:
            part = view[: self._left]
            self._open.update(part)
            self._left -= len(part)
            if not self._left:
                self._done += self._open.digest()
                self._open, self._left = hashlib.sha256(), SPAN
            view = view[len(part) :]

    def finish(self) -> bytes:
        """All of them; nothing is fed any more."""
        if self._left < SPAN:
            self._done += self._open.digest()
        return bytes(self._done)


class Bodies(Protocol):
    """Where an open delta's bodies are. What it gives was compared with its spans."""

    def read(self, begin: int, end: int) -> bytes:
        """These bytes; of a delta that is still being received, when they are here. Raises DeltaDamaged, and what
        receiving raises."""

    def require_whole(self) -> None:
        """Compare all of them, or wait until that is done. Raises as `read`."""


class FileBodies:
    """In a file, read by its descriptor; compared each time, as others may write to a file."""

    def __init__(self, fd: int, at: int, nbytes: int, spans: bytes, told: Callable[[str], DeltaDamaged]) -> None:
        """`at`: where they begin. `told`: makes an error of what is wrong, with the file's name."""
        self._fd, self._at, self._nbytes, self._spans, self._told = fd, at, nbytes, spans, told
        self._last: tuple[int, bytes] = (-1, b"")
        """Windows do not end where spans do: the next one begins in this."""

    def read(self, begin: int, end: int) -> bytes:
        if begin == end:
            return b""
        first, last = begin // SPAN, span_count(end)
        data = b"".join(self._span(number) for number in range(first, last))
        return data[begin - first * SPAN : end - first * SPAN]

    def require_whole(self) -> None:
        for number in range(span_count(self._nbytes)):
            self._span(number)

    def _span(self, number: int) -> bytes:
        if self._last[0] == number:
            return self._last[1]
        begin = number * SPAN
        size = min(SPAN, self._nbytes - begin)
        data = os.pread(self._fd, size, self._at + begin)
        if len(data) < size:
            raise self._told(f"was cut while it was read: bodies from byte {begin} on")
        if hashlib.sha256(data).digest() != digest_of(self._spans, number):
            raise self._told(f"differs from the digest of its span {number} (bodies from byte {begin} on)")
        self._last = (number, data)
        return data


def damaged(path: Path) -> Callable[[str], DeltaDamaged]:
    return lambda what: DeltaDamaged(f"{path} {what}: fetch it again")
