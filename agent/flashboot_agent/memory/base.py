"""The device-memory seam: allocate, export, import, map, copy, free.

Every backend passes tests/component/test_memory_conformance.py. `host` (memfd) is real and is what CPU nodes use;
`cuda` comes behind the same interface. Rules that hold for all: a handle is a file descriptor that the receiver owns;
memory that was sealed as immutable can't be changed by anyone, through any handle; memory that was sealed as updatable
only through `map_for_update` and through handles for writing from before the seal (docs/design/0025); freeing gives
pages back once the last importer has unmapped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType


class Mapping(ABC):
    """Bytes of an arena mapped into this process. A context manager; `close` unmaps."""

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The whole arena; writable only if it was mapped so."""

    @abstractmethod
    def close(self) -> None:
        """Unmap. Idempotent. Raises BufferError while a slice of `view` is still alive."""

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Region(ABC):
    """One arena's memory, held by this process through a handle."""

    arena: str
    nbytes: int
    record: int
    """File descriptor of a small memory beside the arena, kept by the holder too, in which the agent notes what the
    arena is and how far it got (node/record.py). Closed with the region."""

    @abstractmethod
    def export(self, *, writable: bool) -> int:
        """A new file descriptor for a client, who closes it. `writable=False` can't be turned into a writable one by a
        client of another user. Raises CommitRefused when `writable` is asked of sealed memory."""

    @abstractmethod
    def map(self, *, writable: bool) -> Mapping:
        """Map all of it here."""

    @abstractmethod
    def map_for_update(self) -> Mapping:
        """Map sealed memory here for writing. The caller sees to it that nobody reads it meanwhile.

        Raises ArenaImmutable unless it was sealed as updatable."""

    @abstractmethod
    def seal(self, *, updatable: bool = False) -> None:
        """Nobody gets it for writing any more; unless it is `updatable`, nobody can write it either. Idempotent.

        Raises CommitRefused while any process still maps it for writing (nobody can tell of updatable memory), or when
        a client that could write it sealed it otherwise."""

    @property
    @abstractmethod
    def sealed(self) -> bool: ...

    @property
    @abstractmethod
    def updatable(self) -> bool:
        """It was sealed so that `map_for_update` works."""

    @abstractmethod
    def close(self) -> None:
        """Give up this process's handle; the memory lives while another handle or mapping does."""


class DeviceMemory(ABC):
    """A backend."""

    name: str

    @abstractmethod
    def allocate(self, arena: str, nbytes: int) -> Region:
        """New memory of a fixed size, all pages present and charged to the holder.

        Raises InsufficientMemory before anything breaks."""

    @abstractmethod
    def adopt(self, arena: str) -> Region | None:
        """What the holder kept under this name (after a restart of the agent), or None."""

    @abstractmethod
    def free(self, arena: str) -> None:
        """Forget it in the holder; idempotent. Pages go once the last handle and mapping are gone."""

    @abstractmethod
    def inventory(self) -> list[str]:
        """Names of all arenas that the holder keeps."""

    @abstractmethod
    def deposit(self, region: Region) -> None:
        """Give the holder this process's handles of a region that it lost when it restarted; idempotent."""
