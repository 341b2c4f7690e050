"""Whoever broke off or died goes on with what it had, and only with what is right."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from flashboot_agent.core.errors import BadRequest, DeltaDamaged, DeltaUnreachable
from flashboot_agent.delta.arena import Update
from flashboot_agent.delta.spans import SPAN
from flashboot_agent.sync.download import ATTEMPTS
from flashboot_agent.sync.publisher import Publisher
from tests.children import in_child
from tests.component.streams import LARGE, NAME, SMALL, Node, header_of, places, published
from tests.component.sync_server import Server, breaks_after, holds_at
from tests.syncs import publish


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
    for name in ("7-8.delta.0123456789abcdef.part", "0-1.delta.0123456789abcdef.part", "not-ours.part"):
        (node.spool / name).write_bytes(b"half")
    node.follow(server.url)
    assert node.left() == ["not-ours.part"]
