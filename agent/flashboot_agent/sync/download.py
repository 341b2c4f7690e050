"""One file of a known length over HTTP, however often the connection breaks; in pieces, so that memory is bounded.

Holds always: not a byte more is taken than the length says; an attempt goes on where the last one stopped only if the
server says that it is the same file still (If-Range); attempts that bring nothing more are counted, and all of them
together have a deadline.
"""

from __future__ import annotations

import time
from typing import BinaryIO, Final

import httpx

from flashboot_agent.core.errors import DeadlineExceeded, DeltaDamaged, DeltaUnreachable

ATTEMPTS: Final = 5
"""One after another that bring nothing more."""
_PASSING: Final = {408, 425, 429, 500, 502, 503, 504}


class _Again(Exception):
    """This attempt brings nothing; says why."""


class Download:
    def __init__(
        self, client: httpx.Client, url: str, nbytes: int, *, seconds: float, stall_seconds: float, pause: float
    ) -> None:
        """`pause`: seconds before the second attempt that follows one in vain; it doubles."""
        self._client, self._url, self._nbytes = client, url, nbytes
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._stall, self._pause = stall_seconds, pause
        self._have = 0
        self._validator: str | None = None
        """Of the file that the first bytes are of."""

    def into(self, file: BinaryIO) -> None:
        """Raises DeltaUnreachable, DeltaDamaged, DeadlineExceeded, OSError."""
        in_vain = 0
        while True:
            before, why = self._have, "the answer ended early"
            try:
                self._attempt(file)
            except (httpx.TransportError, _Again) as error:
                why = str(error) or type(error).__name__
            if self._have == self._nbytes:
                return
            in_vain = 0 if self._have > before else in_vain + 1
            if in_vain == ATTEMPTS:
                raise DeltaUnreachable(f"{self._progress()}: {ATTEMPTS} attempts brought nothing more: {why}")
            if in_vain:
                time.sleep(min(self._pause * 2 ** (in_vain - 1), self._left()))

    def _attempt(self, file: BinaryIO) -> None:
        headers = {}
        if self._have and self._validator:
            headers = {"range": f"bytes={self._have}-", "if-range": self._validator}
        stall = min(self._stall, self._left())
        with self._client.stream("GET", self._url, headers=headers, timeout=stall) as answer:
            self._have = self._first_byte(answer, resumed=bool(headers))
            file.seek(self._have)
            file.truncate()
            for piece in answer.iter_raw():
                if self._have + len(piece) > self._nbytes:
                    raise DeltaDamaged(f"{self._url} goes on behind the {self._nbytes} bytes that the chain says")
                file.write(piece)
                self._have += len(piece)
                self._left()

    def _first_byte(self, answer: httpx.Response, *, resumed: bool) -> int:
        """Where what comes belongs. Raises _Again, DeltaUnreachable, DeltaDamaged."""
        if answer.status_code in _PASSING:
            raise _Again(f"{answer.status_code} {answer.reason_phrase}")
        if answer.status_code == 416 and resumed:
            self._have, self._validator = 0, None
            raise _Again("another file is there now")
        if answer.status_code not in (200, 206):
            raise DeltaUnreachable(f"{self._url}: {answer.status_code} {answer.reason_phrase}")
        require_plain(answer, self._url)
        if answer.status_code == 200:
            self._require_length(answer)
            self._validator = _validator(answer)
            return 0
        wanted = f"bytes {self._have}-{self._nbytes - 1}/{self._nbytes}"
        if not resumed or answer.headers.get("content-range") != wanted:
            raise DeltaDamaged(
                f"{self._url}: the server sends {answer.headers.get('content-range')}, asked for was {wanted}"
            )
        return self._have

    def _require_length(self, answer: httpx.Response) -> None:
        length = answer.headers.get("content-length")
        if length is not None and length != str(self._nbytes):
            raise DeltaDamaged(f"{self._url} has {length} bytes, the chain says {self._nbytes}")

    def _left(self) -> float:
        """Seconds, more than none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"{self._progress()} after {self._seconds:g} s")
        return left

    def _progress(self) -> str:
        return f"{self._url}: {self._have} of {self._nbytes} bytes are here"


def _validator(answer: httpx.Response) -> str | None:
    tag: str | None = answer.headers.get("etag")
    if tag and not tag.startswith("W/"):
        return tag
    modified: str | None = answer.headers.get("last-modified")
    return modified


def require_plain(answer: httpx.Response, url: str) -> None:
    """Raises DeltaDamaged for an answer that would have to be unpacked: how long it gets then, nobody has said."""
    coding = answer.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise DeltaDamaged(f"{url} comes packed ({coding}), though it was asked for as it is")
