"""One delta over HTTP into its spool, however often the connection breaks; in pieces, so that memory is bounded.

Holds always: no byte is taken behind the end that the chain says; each attempt goes on behind what is right already,
and what comes is compared there, so that another file under this name, or a server that begins anew, is found out by
digests; attempts that bring nothing more are counted, and all of them together have a deadline.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import httpx

from flashboot_agent.core.errors import DeadlineExceeded, DeltaDamaged, DeltaUnreachable
from flashboot_agent.sync.line import FRESH, Line
from flashboot_agent.sync.spool import Spool

ATTEMPTS: Final = 5
"""One after another that bring nothing more."""
_PASSING: Final = {408, 425, 429, 500, 502, 503, 504}


class _Again(Exception):
    """This attempt brings nothing more; says why."""

    def __init__(self, why: str, damage: DeltaDamaged | None = None) -> None:
        super().__init__(why)
        self.damage = damage


class Download:
    def __init__(
        self, client: httpx.Client, url: str, spool: Spool, *, seconds: float, stall_seconds: float, pause: float
    ) -> None:
        """`pause`: seconds before the second attempt that follows one in vain; it doubles."""
        self._client, self._url, self._spool = client, url, spool
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._stall, self._pause = stall_seconds, pause
        self._ranges = True
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._line = Line()

    def run(self) -> None:
        """Until the spool is whole, or `cancel` was called.

        Raises DeltaUnreachable, DeltaDamaged, DeltaUntrusted, DeadlineExceeded, OSError."""
        in_vain = 0
        while not self._spool.whole and not self._stop.is_set():
            before, why, damage = self._spool.have, "the answer ended early", None
            try:
                self._attempt()
            except _Again as error:
                why, damage = str(error), error.damage
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
            if self._stop.is_set() or self._spool.whole:
                return
            in_vain = 0 if self._spool.have > before else in_vain + 1
            if in_vain == ATTEMPTS:
                raise damage or DeltaUnreachable(f"{self._progress()}: {ATTEMPTS} attempts brought nothing more: {why}")
            if in_vain:
                self._stop.wait(min(self._pause * 2 ** (in_vain - 1), self._left()))

    def cancel(self) -> None:
        """From another thread: `run` ends soon, also where it waits for bytes."""
        self._stop.set()
        with self._lock:
            self._line.cut()

    def _attempt(self) -> None:
        have = self._spool.have
        ranged = {"range": f"bytes={have}-"} if have and self._ranges else {}
        stall, line = min(self._stall, self._left()), self._fresh_line()
        with self._client.stream(
            "GET", self._url, headers=FRESH | ranged, timeout=stall, extensions=line.extensions
        ) as answer:
            skip = have - self._first_byte(answer, have if ranged else None)
            for piece in answer.iter_raw():
                fresh = piece[skip:]
                skip = max(0, skip - len(piece))
                try:
                    self._spool.feed(fresh)
                except DeltaDamaged as error:
                    raise _Again(str(error), error) from error
                if self._spool.whole and "content-length" not in answer.headers:
                    return  # however long it goes on
                self._left()

    def _first_byte(self, answer: httpx.Response, asked: int | None) -> int:
        """Where what comes belongs. Raises _Again, DeltaUnreachable, DeltaDamaged."""
        if answer.status_code in _PASSING:
            raise _Again(f"{answer.status_code} {answer.reason_phrase}")
        if answer.status_code == 416 and asked is not None:
            self._ranges = False  # the whole file says what it is
            raise _Again("it has not the bytes that are still missing")
        if answer.status_code not in (200, 206):
            raise DeltaUnreachable(f"{self._url}: {answer.status_code} {answer.reason_phrase}")
        require_plain(answer, self._url)
        if answer.status_code == 200:
            self._require_length(answer.headers.get("content-length"))
            return 0
        told = str(answer.headers.get("content-range"))
        if asked is None or not told.startswith(f"bytes {asked}-"):
            wanted = "all of it" if asked is None else f"what begins at byte {asked}"
            raise DeltaDamaged(f"{self._url}: the server sends {told}, asked for was {wanted}")
        _, _, length = told.partition("/")
        self._require_length(None if length == "*" else length)
        return asked

    def _require_length(self, length: str | None) -> None:
        if length is not None and length != str(self._spool.step.nbytes):
            raise DeltaDamaged(f"{self._url} has {length} bytes, the chain says {self._spool.step.nbytes}")

    def _fresh_line(self) -> Line:
        """Which `cancel` reaches, before or after this."""
        with self._lock:
            self._line = line = Line()
            if self._stop.is_set():
                line.cut()
        return line

    def _left(self) -> float:
        """Seconds, more than none."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"{self._progress()} after {self._seconds:g} s")
        return left

    def _progress(self) -> str:
        return f"{self._url}: {self._spool.have} of {self._spool.step.nbytes} bytes are here"


def require_plain(answer: httpx.Response, url: str) -> None:
    """Raises DeltaDamaged for an answer that would have to be unpacked: how long it gets then, nobody has said."""
    coding = answer.headers.get("content-encoding", "identity")
    if coding != "identity":
        raise DeltaDamaged(f"{url} comes packed ({coding}), though it was asked for as it is")
