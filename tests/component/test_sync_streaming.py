"""A delta is decoded while it comes, and each part of it is believed alone."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from pathlib import Path

import pytest
from aiohttp import web

from flashboot_agent.core.errors import DeltaBaseMismatch, DeltaDamaged
from flashboot_agent.delta.document import HEADER
from flashboot_agent.delta.spans import SPAN
from flashboot_agent.sync import download
from tests.component.streams import LARGE, NAME, Node, header_of, published
from tests.component.sync_server import Server, holds_at


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


@pytest.mark.slow
def test_a_flipped_bit_of_any_part_is_refused(
    tmp_path: Path, small: tuple[Server, bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ATTEMPTS", 1)
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
