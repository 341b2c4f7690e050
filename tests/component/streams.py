"""A version published as a delta as large as itself, and a node that follows it into an arena, step by step."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.delta.arena import Point, Update
from flashboot_agent.delta.document import HEADER, Header, read_header
from flashboot_agent.delta.file import Delta
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.sync.chain import Chain
from flashboot_agent.sync.http import HttpOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.tensors import TensorPlaces, TensorSpec
from tests.component.sync_server import Server, serving
from tests.syncs import publish

NAME = "0-1.delta"
LARGE, SMALL = 20 << 20, 3 << 19
"""Three windows; and a few spans."""


def places(nbytes: int) -> TensorPlaces:
    return TensorPlaces({"w": TensorSpec("BF16", (nbytes // 2,))})


@contextmanager
def published(folder: Path, nbytes: int) -> Iterator[tuple[Server, bytes, bytes]]:
    """Version 1 is a delta of version 0 that is as large as it: nothing of the one is in the other."""
    base, new = os.urandom(nbytes), os.urandom(nbytes)
    with Publisher(folder, places(nbytes)) as publisher:
        publish(publisher, 0, {"w": base})
        publish(publisher, 1, {"w": new})
    with serving(folder) as server:
        yield server, base, new


class Telling(ResidentArena):
    """Says each step of its update."""

    def __init__(self, memory: memoryview, folder: Path, point: Point) -> None:
        of = places(memory.nbytes)
        self.source = MemorySource(memory, of.runs, of.content, "the arena", of.subject)
        super().__init__(self.source, 0, chunk_digests(memory), folder)
        self.folder, self.point = folder, point

    def apply(self, delta: Delta) -> None:
        self.folder.mkdir(exist_ok=True)
        update = Update(delta, self.source, self.folder / "journal", point=self.point)
        update.apply(self.version, self.digests, self.folder / "reverse.delta")
        self.version = delta.contents.metadata.new_version


class Node:
    def __init__(self, folder: Path, base: bytes, point: Point = lambda step: None) -> None:
        self.folder, self.spool = folder, folder / "spool"
        self.memory = mmap.mmap(-1, len(base))
        self.memory[:] = base
        self.arena = Telling(memoryview(self.memory), folder / "arena", point)

    @contextmanager
    def receiver(
        self, url: str, *, stall: float = 10.0, at: Callable[[int], None] = lambda nbytes: None
    ) -> Iterator[Receiver]:
        with HttpOrigin(url, seconds=60, stall_seconds=stall, pause=0.001) as origin:
            yield Receiver(origin, self.spool, None, progress=lambda step, nbytes: at(nbytes))

    def follow(self, url: str, chain: Chain | None = None, *, stall: float = 10.0) -> None:
        with self.receiver(url, stall=stall) as receiver:
            receiver.follow(self.arena, chain=chain)

    def fetch(self, url: str, at: Callable[[int], None] = lambda nbytes: None) -> Chain:
        with self.receiver(url, at=at) as receiver:
            return receiver.fetch(self.arena)

    def left(self) -> list[str]:
        return [path.name for path in self.spool.iterdir()]


def header_of(server: Server) -> Header:
    path = server.folder / NAME
    return read_header(path.read_bytes()[: HEADER.size], path)
