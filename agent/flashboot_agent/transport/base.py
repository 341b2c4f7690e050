"""The transport seam: offer an arena, pull lanes of it.

Every transport passes tests/component/test_transport_conformance.py. The same clone loop (node/lane.py) serves all of
them: it calls `advance` again and again, looks at its own deadlines in between, and decides whom to pull from. What a
transport writes, it also checks against the digests and marks, because bytes are cheapest to check while they are in
cache; the marks (`_native.Marks`) never say verified of a byte that was not compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from flashboot_agent._native import EgressBucket, Marks
from flashboot_agent.core.identity import document_digest
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.base import Digest


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
    version: int = 0
    """Of the weights."""

    @cached_property
    def layout_digest(self) -> Digest:
        """Of the layout document, which may have megabytes."""
        return document_digest(self.layout)


@dataclass(frozen=True)
class Sink:
    """Where a pull writes: one lane of the child's arena."""

    memory: memoryview
    """The whole arena, writable. The pull keeps hold of it until it is closed; unmap only then."""
    marks: Marks
    """Of the child's arena: the pull starts at the lane's `received`, and raises received and verified."""
    lane: int
    digests: bytes
    """The digest table that this arena has to match; the parent's was compared with it."""
    request_bytes: int
    """Bytes of one ranged request."""
    patience: float = 1.0
    """Factor on the time in which a request must be answered that the parent can answer."""

    def require(self, meta: ArenaMeta) -> None:
        """It has room for the parent's arena; else raises ValueError, since that is a fault of ours."""
        if len(self.memory) != meta.nbytes:
            raise ValueError(f"{meta.arena} has {meta.nbytes} bytes; got {len(self.memory)} to fill")


@dataclass(frozen=True)
class Progress:
    """What `advance` came to."""

    state: Literal["done", "going", "differs"]
    """done: the lane is verified to its end. going: call again. differs: the chunk at `offset` differs from its digest;
    the lane's `received` was set back to it."""
    offset: int = 0
    parent_end: int = 0
    """How far the parent's own verified run reaches, as of its last word."""
    starved: bool = False
    """The parent answers, and has no byte that we lack."""
    bytes_in: int = 0
    """Bytes that arrived during this call."""
    silent_seconds: float = 0.0
    """Since the last byte arrived, or since the first call."""


class SourceArena(Protocol):
    """An arena as a server sees it; `close` ends the reader's lease."""

    @property
    def meta(self) -> ArenaMeta: ...

    @property
    def marks(self) -> Marks:
        """They are closed when the arena goes; whoever reads then lets go at once."""

    @property
    def memory(self) -> memoryview:
        """A new view of the whole arena for reading; bytes that the marks don't call verified are not for anybody. The
        caller releases it before `close`. Raises UnknownArena when the arena goes."""

    @property
    def buckets(self) -> list[EgressBucket]:
        """What leaves towards this child is taken from each of them."""

    def close(self) -> None: ...


class ArenaCatalog(Protocol):
    """Where a server finds arenas."""

    def open(self, arena: str, child: str) -> SourceArena:
        """A lease for the node `child`. Raises UnknownArena, or NotReady while the arena has no metadata yet."""


class Pull(ABC):
    """A connection to one parent for one arena, for one lane. Used by one thread; `close` may come from any."""

    meta: ArenaMeta

    @abstractmethod
    def advance(self, sink: Sink, seconds: float) -> Progress:
        """Pull the lane in order for at most `seconds`, at least two ranged requests in flight. Always the same sink.

        Raises ParentUnreachable, TornFrame, DeadlineExceeded (the parent went silent, or its marks stand above ours and
        it does not send in time), UnknownArena (the parent dropped it), MarksClosed (our own arena goes)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the parent and, unless an `advance` runs, of the sink's memory. Idempotent; an `advance` in another
        thread ends with ParentUnreachable."""


class Transport(ABC):
    name: str

    @abstractmethod
    def probe(self, peer: Peer) -> str:
        """Why this transport serves for the peer, for status; looks at this node only, and never waits.

        Raises ParentUnreachable with the reason when it does not serve."""

    @abstractmethod
    def connect(self, peer: Peer, arena: str, child: str, deadline: float) -> Pull:
        """Connect and read the metadata within `deadline` seconds.

        Raises ParentUnreachable, TornFrame, UnknownArena, NotReady, DeadlineExceeded, PeerRefused (its certificate)."""


class Server(ABC):
    """The offering side, running until closed."""

    address: str
    """`ip:port` where peers find it."""

    @abstractmethod
    def close(self) -> None: ...
