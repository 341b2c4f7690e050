"""Following a chain over HTTP: broken connections, wrong servers, limits and deadlines; nothing is left behind."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.core.errors import (
    BadRequest,
    DeadlineExceeded,
    DeltaDamaged,
    DeltaUnreachable,
    DiskFull,
    FlashBootError,
    NotReady,
)
from flashboot_agent.sync import chain_file, incoming
from flashboot_agent.sync.download import ATTEMPTS
from flashboot_agent.sync.http import HttpOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.trust import keys
from flashboot_agent.wire.base import now
from tests.component.sync_server import Answer, Server, breaks_after, drips_headers, endless, says, serving, stops_after
from tests.syncs import PLACES, Version, arena, files_of_at_most, image, publish, versions

STEPS = versions(3)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Publisher(tmp_path / "p", PLACES) as publisher:
        for number, version in enumerate(STEPS):
            publish(publisher, number, version)
    with serving(tmp_path / "p") as server:
        yield server


class Node:
    """A receiver's place, with an arena of version 0."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.memory = folder / "spool", image(STEPS[0])
        self.arena: ResidentArena = arena(self.memory, 0, folder / "arena")

    def follow(self, url: str, *, seconds: float = 20, tls: ssl.SSLContext | None = None) -> None:
        with HttpOrigin(url, seconds=seconds, stall_seconds=0.2, pause=0.001, tls=tls) as origin:
            Receiver(origin, self.spool, None).follow(self.arena)

    def has(self, version: Version) -> bool:
        return self.memory == image(version) and not list(self.spool.iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_the_newest_version_arrives(server: Server, node: Node) -> None:
    node.follow(server.url + "/")
    assert node.has(STEPS[2])
    assert server.asked == [("0-1.delta", None), ("1-2.delta", None)]


def test_what_others_have_in_the_spool_folder_stays(server: Server, node: Node) -> None:
    node.spool.mkdir()
    for name in ("film.part", "7-8.delta.0123456789abcdef.part"):
        (node.spool / name).touch()
    node.follow(server.url)
    assert [path.name for path in node.spool.iterdir()] == ["film.part"]


def test_over_tls_only_from_whom_is_trusted(tmp_path: Path, server: Server, node: Node) -> None:
    key = keys.new_key()
    certificate = keys.self_signed(key, "localhost", now())
    (tmp_path / "own.pem").write_bytes(keys.key_pem(key) + certificate)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(tmp_path / "own.pem")
    with serving(server.folder, own) as secure:
        with pytest.raises(DeltaUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            node.follow(secure.url)
        node.follow(secure.url, tls=ssl.create_default_context(cadata=certificate.decode()))
    assert node.has(STEPS[2])


@pytest.mark.parametrize("answer", [breaks_after(1000), stops_after(1000)], ids=["breaks", "stops"])
def test_a_broken_download_goes_on_where_it_broke(server: Server, node: Node, answer: Answer) -> None:
    server.bad = [answer, says(503), says(503)]
    node.follow(server.url)
    assert node.has(STEPS[2])
    assert server.asked == [("0-1.delta", None), *[("0-1.delta", "bytes=1000-")] * 3, ("1-2.delta", None)]


def test_servers_without_ranges_and_such_that_lost_the_file_for_a_while(server: Server, node: Node) -> None:
    server.bad = [breaks_after(1000), says(416), breaks_after(2000), says(200)]
    node.follow(server.url)
    assert node.has(STEPS[2])
    ranges = [asked for _, asked in server.asked]
    assert ranges == [None, "bytes=1000-", None, None, None]


def test_what_goes_on_behind_the_end_is_left_alone(server: Server, node: Node) -> None:
    server.bad = [endless(first=(server.folder / "0-1.delta").read_bytes())]
    node.follow(server.url)
    assert node.has(STEPS[2])


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ([breaks_after(10)] * (ATTEMPTS + 2), DeltaUnreachable, "10 of .* attempts brought nothing more"),
        ([says(503)] * ATTEMPTS, DeltaUnreachable, "0 of .*503 Service Unavailable"),
        ([says(403)], DeltaUnreachable, "403 Forbidden"),
        ([says(302, location="http://127.0.0.1:1/")], DeltaUnreachable, "302 Found"),
        ([endless()] * ATTEMPTS, DeltaDamaged, "is no delta"),
        ([says(200, content_encoding="br")], DeltaDamaged, r"comes packed \(br\)"),
        ([says(206, content_range="bytes 0-9/10")], DeltaDamaged, "sends bytes 0-9/10, asked for"),
        (
            [breaks_after(10), says(206, content_range="bytes 0-9/10")],
            DeltaDamaged,
            "asked for was what begins at byte 10",
        ),
    ],
)
def test_a_server_that_does_not_send_it_is_told_of(
    server: Server, node: Node, answers: list[Answer], error: type[FlashBootError], message: str
) -> None:
    server.bad = list(answers)
    with pytest.raises(error, match=f"0-1.delta.*{message}"):
        node.follow(server.url)
    assert node.arena.version == 0
    assert node.has(STEPS[0])


def test_files_of_another_length_are_not_even_begun(server: Server, node: Node) -> None:
    path = server.folder / "1-2.delta"
    good = path.read_bytes()
    for data in (good[:-1], good + b"x"):
        path.write_bytes(data)
        with pytest.raises(DeltaDamaged, match=f"1-2.delta has {len(data)} bytes, the chain says {len(good)}"):
            node.follow(server.url)
        assert node.arena.version == 1
        assert node.has(STEPS[1])
    path.write_bytes(good[:700] + bytes([good[700] ^ 1]) + good[701:])
    with pytest.raises(DeltaDamaged, match=r"1-2.delta.*differs from the digest of its span 0"):
        node.follow(server.url)
    path.unlink()
    with pytest.raises(DeltaUnreachable, match=r"1-2.delta: 404"):
        node.follow(server.url)
    assert node.has(STEPS[1])


def test_a_server_that_drips_meets_the_deadline(server: Server, node: Node) -> None:
    server.bad = [endless(0.01, 1)]
    with pytest.raises(DeadlineExceeded, match=r"0-1.delta: \d+ of \d+ bytes are here after 0.3 s"):
        node.follow(server.url, seconds=0.3)
    server.bad_chain = [endless(0.01, 1)]
    with pytest.raises(DeadlineExceeded, match=r"chain: \d+ bytes after 0.3 s, and no end"):
        node.follow(server.url, seconds=0.3)
    assert node.has(STEPS[0])


def test_a_server_that_drips_headers_meets_the_deadline(
    server: Server, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "_SLACK", 0.1)
    server.bad_chain = [drips_headers()]
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"chain: 0 bytes after 0.3 s, and no end"):
        node.follow(server.url, seconds=0.3)
    server.bad = [drips_headers()]
    with pytest.raises(DeadlineExceeded, match=r"0-1.delta is not here after 0.3 s"):
        node.follow(server.url, seconds=0.3)
    assert time.monotonic() - began < 10
    assert node.has(STEPS[0])


def test_chains_that_can_not_be_read(server: Server, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    server.bad_chain = [says(500)]
    with pytest.raises(DeltaUnreachable, match="chain: 500"):
        node.follow(server.url)
    monkeypatch.setattr(chain_file, "MAX_BYTES", 1 << 20)
    server.bad_chain = [endless()]
    with pytest.raises(DeltaDamaged, match="chain does not end as a chain document"):
        node.follow(server.url)
    (server.folder / chain_file.NAME).unlink()
    with pytest.raises(NotReady, match="nothing is published at this address"):
        node.follow(server.url)
    with pytest.raises(DeltaUnreachable, match=r"127.0.0.1:1/chain: "):
        node.follow("http://127.0.0.1:1")
    with pytest.raises(BadRequest, match="no http"):
        HttpOrigin("ftp://localhost")
    assert node.has(STEPS[0])


def test_no_room_for_what_is_fetched(server: Server, node: Node) -> None:
    with files_of_at_most(2000), pytest.raises(DiskFull, match="spool"):
        node.follow(server.url)
    assert node.has(STEPS[0])
