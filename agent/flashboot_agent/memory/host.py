"""The `host` backend: arenas are memfds that the holder made, so that they outlive this process.

Holds always: a mapping that is not meant for writing comes from a read-only descriptor (a mapping from a writable one
would count as a possible writer and forbid the seal); all pages are present before anybody maps.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flashboot_agent.core.errors import ArenaImmutable, CommitRefused
from flashboot_agent.memory import memfd
from flashboot_agent.memory.base import DeviceMemory, Mapping, Region
from flashboot_agent.memory.memfd import Pages
from flashboot_agent.memory.probe import HostFacts, choose, probe


@dataclass(frozen=True)
class Kept:
    """What the holder gives for an arena: two descriptors that the receiver owns."""

    data: int
    record: int
    nbytes: int


class Keeper(Protocol):
    """The holder, as this backend needs it (holder/client.py)."""

    def create(self, arena: str, nbytes: int, pages: Pages) -> Kept: ...

    def get(self, arena: str) -> Kept | None: ...

    def drop(self, arena: str) -> None: ...

    def put(self, arena: str, nbytes: int, data: int, record: int) -> None: ...

    def inventory(self) -> dict[str, int]: ...


class HostMapping(Mapping):
    """An mmap of the whole arena."""

    def __init__(self, fd: int, nbytes: int, *, writable: bool) -> None:
        # Whole pages, because a hugetlb file can only be mapped and unmapped so.
        length = max(os.fstat(fd).st_size, nbytes)
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=access)
        self._whole = memoryview(self._map)
        self._view = self._whole[:nbytes]

    @property
    def view(self) -> memoryview:
        return self._view

    def close(self) -> None:
        self._view.release()
        self._whole.release()
        self._map.close()


class HostRegion(Region):
    """One arena's memfd."""

    def __init__(self, arena: str, kept: Kept) -> None:
        self.arena = arena
        self.nbytes = kept.nbytes
        self.record = kept.record
        self._fd: int | None = kept.data

    @property
    def fd(self) -> int:
        """This process's own descriptor (read-write); for the holder, should it have lost its own."""
        if self._fd is None:
            raise ValueError(f"the region of {self.arena} is closed")
        return self._fd

    def export(self, *, writable: bool) -> int:
        if not writable:
            return memfd.reopen_read_only(self.fd)
        if self.sealed:
            raise CommitRefused(f"{self.arena} is sealed; nobody gets it for writing")
        return os.dup(self.fd)

    def map(self, *, writable: bool) -> Mapping:
        if writable:
            if self.sealed:
                raise CommitRefused(f"{self.arena} is sealed; nobody maps it for writing")
            return HostMapping(self.fd, self.nbytes, writable=True)
        fd = memfd.reopen_read_only(self.fd)
        try:
            return HostMapping(fd, self.nbytes, writable=False)
        finally:
            os.close(fd)

    def map_for_update(self) -> Mapping:
        if not self.updatable:
            raise ArenaImmutable(
                f"{self.arena} is {'sealed against every write' if self.sealed else 'not sealed yet'}; only an arena "
                "that was made with `updatable: true` can be updated in place: drop it, and make it so"
            )
        return HostMapping(self.fd, self.nbytes, writable=True)

    def seal(self, *, updatable: bool = False) -> None:
        try:
            (memfd.finish if updatable else memfd.make_immutable)(self.fd)
        except OSError as error:
            if error.errno == errno.EPERM:
                raise CommitRefused(f"{self.arena} can't be sealed: a client forbade further seals") from error
            if error.errno != errno.EBUSY:
                raise
            raise CommitRefused(
                f"{self.arena} can't be sealed: a process still maps it for writing; unmap it, then commit again"
            ) from error
        if self.updatable != updatable:  # who could write it could seal it, too
            kind = "updatable" if updatable else "immutable"
            raise CommitRefused(f"{self.arena} can't be sealed as {kind}: a client sealed it in another way")

    @property
    def sealed(self) -> bool:
        return memfd.is_finished(self.fd)

    @property
    def updatable(self) -> bool:
        return self.sealed and not memfd.is_immutable(self.fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            os.close(self.record)
            self._fd = None


class HostMemoryBackend(DeviceMemory):
    """Arenas in host memory, kept by the holder."""

    name = "host"

    def __init__(self, keeper: Keeper, facts: Callable[[], HostFacts] = probe) -> None:
        self._keeper = keeper
        self._facts = facts

    def allocate(self, arena: str, nbytes: int) -> HostRegion:
        return HostRegion(arena, self._keeper.create(arena, nbytes, choose(self._facts(), nbytes).pages))

    def adopt(self, arena: str) -> HostRegion | None:
        kept = self._keeper.get(arena)
        return None if kept is None else HostRegion(arena, kept)

    def free(self, arena: str) -> None:
        self._keeper.drop(arena)

    def inventory(self) -> list[str]:
        return list(self._keeper.inventory())

    def deposit(self, region: Region) -> None:
        if not isinstance(region, HostRegion):
            raise TypeError(f"{region.arena} is not host memory")
        self._keeper.put(region.arena, region.nbytes, region.fd, region.record)
