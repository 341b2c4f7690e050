"""The transport seam: offer an arena, pull ranges of it.

Every transport passes tests/component/test_transport_conformance.py. The same clone loop (node/clone.py) serves all of
them: it asks a `Pull` for verified-by-nobody bytes in order, checks digests itself, and raises its own watermark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

from flashboot_agent.wire.base import Digest
from flashboot_agent.wire.control import Peer


@dataclass(frozen=True)
class ArenaMeta:
    """What a child learns before the first byte."""

    arena: str
    identity: Digest
    nbytes: int
    layout: bytes
    """The layout document, as the seed wrote it."""
    chunk_digests: bytes
    """8 bytes little-endian per digest chunk (core/digest.py)."""
    digest: Digest
    """Root over `chunk_digests`."""


@dataclass(frozen=True)
class Piece:
    """Bytes that a pull has written into the child's memory."""

    offset: int
    nbytes: int
    """0: nothing new; the parent answers, and its watermark stands still."""
    parent_watermark: int


class SourceArena(Protocol):
    """An arena as a server sees it; `close` ends the reader's lease."""

    @property
    def meta(self) -> ArenaMeta: ...

    def wait_watermark(self, above: int, timeout: float) -> int:
        """The watermark, as soon as it is > `above`, or after `timeout` seconds whatever it is then.

        Raises UnknownArena when the arena was dropped meanwhile."""

    def view(self, offset: int, nbytes: int) -> memoryview:
        """Bytes below the watermark; the caller releases the view before `close`."""

    def sent(self, nbytes: int) -> None:
        """Account bytes that left towards this reader."""

    def close(self) -> None: ...


class ArenaCatalog(Protocol):
    """Where a server finds arenas."""

    def open(self, arena: str, child: str) -> SourceArena:
        """A lease for the node `child`. Raises UnknownArena, or NotReady while the arena has no metadata yet."""


class Pull(ABC):
    """A connection to one parent for one arena. Used by one thread; `close` may come from any."""

    meta: ArenaMeta

    @abstractmethod
    def stream(self, start: int, into: memoryview) -> Generator[Piece, None, None]:
        """Fill `into` (the whole arena) from byte `start` to the end, in order, at least two ranged requests in flight.

        A Piece of 0 bytes comes after each long poll that ran out (about every second while the parent itself waits for
        bytes), so that the caller can look at its own deadlines and at whether it is still wanted.

        May be called again after it ended or was abandoned, with another start (a chunk whose digest was wrong).
        Raises ParentUnreachable, TornFrame, DeadlineExceeded (the parent went silent, or its watermark stands above
        ours and it does not send), UnknownArena (the parent dropped it)."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent; a `stream` in another thread ends with ParentUnreachable."""


class Transport(ABC):
    name: str

    @abstractmethod
    def probe(self, peer: Peer) -> str:
        """Why this transport serves for the peer, for status. Raises ParentUnreachable with the reason when not."""

    @abstractmethod
    def connect(self, peer: Peer, arena: str, child: str, deadline: float) -> Pull:
        """Connect and read the metadata within `deadline` seconds.

        Raises ParentUnreachable, TornFrame, UnknownArena, NotReady, DeadlineExceeded."""


class Server(ABC):
    """The offering side, running until closed."""

    address: str
    """`ip:port` where peers find it."""

    @abstractmethod
    def close(self) -> None: ...
