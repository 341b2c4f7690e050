"""A delta is decoded while it comes, each part is believed alone, and whoever died goes on with what it had."""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch, DeltaDamaged, DeltaUnreachable
from flashboot_agent.delta.arena import Point, Update
from flashboot_agent.delta.document import HEADER, Header, read_header
from flashboot_agent.delta.file import Delta
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.spans import SPAN
from flashboot_agent.sync.chain import Chain
from flashboot_agent.sync.download import ATTEMPTS
from flashboot_agent.sync.http import HttpOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.tensors import TensorPlaces, TensorSpec
from tests.children import in_child
from tests.component.sync_server import Server, breaks_after, holds_at, serving
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


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, bytes, bytes]]:
    with published(tmp_path_factory.mktemp("large"), LARGE) as found:
        yield found


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Server, bytes, bytes]]:
    with published(tmp_path / "published", SMALL) as found:
        yield found


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


def test_windows_are_written_while_the_rest_is_on_its_way(tmp_path: Path, large: tuple[Server, bytes, bytes]) -> None:
    """The server sends the end only when the receiver has written the first window."""
    server, base, new = large
    server.asked.clear()
    go, steps = asyncio.Event(), list[str]()

    def point(step: str) -> None:
        steps.append(step)
        if step == "written":
            server.loop.call_soon_threadsafe(go.set)

    node = Node(tmp_path, base, point)
    server.bad = [holds_at(header_of(server).trailer_at - SPAN, go)]
    node.follow(server.url)
    assert node.memory[:] == new
    assert steps.count("written") == 3
    assert server.asked == [(NAME, None)]
    assert node.left() == []


def test_what_was_fetched_is_applied_without_the_server(tmp_path: Path) -> None:
    with published(tmp_path / "published", SMALL) as (server, base, new):
        node = Node(tmp_path, base)
        chain = node.fetch(server.url)
        assert node.memory[:] == base
        assert len(node.left()) == 1
        assert node.fetch(server.url) == chain
        assert server.asked == [(NAME, None)]
    node.follow(server.url, chain)
    assert node.memory[:] == new
    assert node.left() == []


def test_a_flipped_bit_of_any_part_is_refused(tmp_path: Path, small: tuple[Server, bytes, bytes]) -> None:
    server, base, _ = small
    path, header = server.folder / NAME, header_of(server)
    good = path.read_bytes()
    parts = [
        *range(0, HEADER.size, 7),
        *range(HEADER.size, header.bodies_at, 97),
        *range(header.bodies_at + 5, header.trailer_at, SPAN),
        *range(header.trailer_at, len(good), 9),
    ]
    node = Node(tmp_path, base)
    for at in parts:
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(DeltaDamaged, match=NAME):
            node.follow(server.url)
        assert node.memory[:] == base, at
        assert node.left() == [], at
    print(f"{len(parts)} flipped bits, each refused")


def test_a_bit_that_flips_on_the_way_costs_its_span(tmp_path: Path, small: tuple[Server, bytes, bytes]) -> None:
    server, base, new = small
    node, header = Node(tmp_path, base), header_of(server)
    good = (server.folder / NAME).read_bytes()
    at = header.bodies_at + 3 * SPAN

    damaged = good[: at + 9] + bytes([good[at + 9] ^ 32]) + good[at + 10 :]

    async def flips(request: web.Request, data: bytes) -> web.StreamResponse:
        return web.Response(body=damaged)

    server.bad = [flips]
    node.follow(server.url)
    assert node.memory[:] == new
    assert server.asked == [(NAME, None), (NAME, f"bytes={at}-")]


def dies_at(node: Node, url: str, nbytes: int) -> None:
    def at(verified: int) -> None:
        if verified >= nbytes:
            os.kill(os.getpid(), signal.SIGKILL)

    node.fetch(url, at)


def test_a_receiver_that_was_killed_goes_on_where_it_was(tmp_path: Path, large: tuple[Server, bytes, bytes]) -> None:
    server, base, new = large
    server.asked.clear()
    node, half = Node(tmp_path, base), LARGE // 2
    assert in_child(partial(dies_at, node, server.url, half)) == -signal.SIGKILL
    (left,) = node.left()
    with open(node.spool / left, "r+b") as file:  # a disk, or somebody, changed one byte of it
        file.seek(header_of(server).bodies_at + 100 * SPAN + 7)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 4]))
    node.follow(server.url)
    assert node.memory[:] == new
    assert server.asked == [(NAME, None), (NAME, f"bytes={header_of(server).bodies_at + 100 * SPAN}-")]
    assert node.left() == []


def test_bytes_come_once_whoever_receives_them(tmp_path: Path, large: tuple[Server, bytes, bytes]) -> None:
    server, base, new = large
    server.asked.clear()
    node = Node(tmp_path, base)
    for part in (1, 2, 3):
        assert in_child(partial(dies_at, node, server.url, part * LARGE // 4)) == -signal.SIGKILL
    node.follow(server.url)
    assert node.memory[:] == new
    begins = [int(asked.split("=")[1][:-1]) if asked else 0 for _, asked in server.asked]
    assert begins[0] == 0
    for part in (1, 2, 3):  # what was verified by then is not asked for again
        assert begins[part] >= part * LARGE // 4


def test_a_connection_that_breaks_for_good_leaves_the_arena_as_it_was(
    tmp_path: Path, large: tuple[Server, bytes, bytes]
) -> None:
    server, base, new = large
    server.asked.clear()
    written: list[str] = []
    node, begin = Node(tmp_path, base, written.append), header_of(server).bodies_at + LARGE // 2
    ends = [breaks_after(begin), *[holds_at(0, asyncio.Event())] * ATTEMPTS]  # and then nothing comes any more
    server.bad = list(ends)
    with pytest.raises(DeltaUnreachable, match=f"{NAME}: {begin} of .* attempts brought nothing more"):
        node.follow(server.url, stall=0.1)
    server.bad.clear()
    assert "written" in written
    assert "back" in written
    assert node.memory[:] == base
    server.asked.clear()
    node.follow(server.url)
    assert node.memory[:] == new
    assert server.asked == [(NAME, f"bytes={begin}-")]


def test_a_file_that_was_changed_meanwhile_is_no_end_of_what_is_here(
    tmp_path: Path, small: tuple[Server, bytes, bytes]
) -> None:
    server, base, _ = small
    node, path = Node(tmp_path, base), server.folder / NAME
    good = path.read_bytes()
    assert in_child(partial(dies_at, node, server.url, SMALL // 2)) == -signal.SIGKILL
    path.write_bytes(os.urandom(len(good)))
    with pytest.raises(DeltaDamaged, match="differs from the digest of its span"):
        node.follow(server.url)
    assert node.memory[:] == base
    assert node.left() == []


def test_a_publisher_that_began_anew_is_followed_anew(tmp_path: Path, small: tuple[Server, bytes, bytes]) -> None:
    server, base, _ = small
    node, other = Node(tmp_path, base), os.urandom(SMALL)
    assert in_child(partial(dies_at, node, server.url, SMALL // 2)) == -signal.SIGKILL
    before = node.left()
    for path in server.folder.iterdir():
        path.unlink()
    with Publisher(server.folder, places(SMALL)) as publisher:
        publish(publisher, 0, {"w": base})
        publish(publisher, 1, {"w": other})
    node.fetch(server.url)
    assert len(node.left()) == 1
    assert node.left() != before
    node.follow(server.url)
    assert node.memory[:] == other


def follows_and_dies(node: Node, url: str, window: int) -> None:
    written = iter(range(1, 100))

    def point(step: str) -> None:
        if step == "written" and next(written) == window:
            os.kill(os.getpid(), signal.SIGKILL)

    node.arena.point = point
    node.follow(url)


@pytest.mark.parametrize("to", ["base", "result"])
def test_a_receiver_that_dies_between_windows_is_recovered_from_its_spool(
    tmp_path: Path, large: tuple[Server, bytes, bytes], to: str
) -> None:
    server, base, new = large
    node = Node(tmp_path, base)
    assert in_child(partial(follows_and_dies, node, server.url, 2)) == -signal.SIGKILL
    assert node.memory[:] not in (base, new)
    with node.receiver(server.url) as receiver:
        chain = receiver.chain()
        with receiver.opened(chain, chain.steps[0]) as delta:
            update = Update(delta, node.arena.source, node.folder / "arena" / "journal")
            update.recover("base" if to == "base" else "result", node.folder / "arena" / "reverse.delta")
    assert node.memory[:] == (base if to == "base" else new)
    assert node.left() == []


def test_who_has_no_use_for_it_does_not_wait_for_the_rest(tmp_path: Path, large: tuple[Server, bytes, bytes]) -> None:
    server, base, _ = large
    node = Node(tmp_path, base)
    node.memory[7] ^= 1
    server.bad = [holds_at(header_of(server).bodies_at + LARGE // 2, asyncio.Event())]
    began = time.monotonic()
    with pytest.raises(DeltaBaseMismatch, match="chunk 0"):
        node.follow(server.url, stall=30)
    assert time.monotonic() - began < 10
    assert node.left() == []


def test_one_receiver_at_a_time_has_a_file(tmp_path: Path, small: tuple[Server, bytes, bytes]) -> None:
    server, base, _ = small
    node = Node(tmp_path, base)
    with node.receiver(server.url) as receiver:
        chain = receiver.chain()
        with receiver.opened(chain, chain.steps[0]), pytest.raises(BadRequest, match="another process receives there"):
            node.follow(server.url)
        node.follow(server.url)


def test_what_is_of_other_ways_goes(tmp_path: Path, small: tuple[Server, bytes, bytes]) -> None:
    server, base, _ = small
    node = Node(tmp_path, base)
    node.spool.mkdir()
    for name in ("7-8.delta.part", "0-1.delta.0123456789abcdef.part"):
        (node.spool / name).write_bytes(b"half")
    node.follow(server.url)
    assert node.left() == []


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    with published(tmp_path / "published", 64 << 20) as (server, base, _):
        node = Node(tmp_path, base)
        tracemalloc.start()
        try:
            node.fetch(server.url)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    print(f"64 MiB received, {peak >> 10} KiB of memory at most")
    assert peak < 4 << 20
