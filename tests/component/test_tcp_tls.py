"""TLS between agents: who is believed, what a handshake may cost, and certificates that change under way."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest

from flashboot_agent.core.errors import FlashBootError, NotReady, ParentUnreachable, PeerRefused
from flashboot_agent.transport.base import Pull
from flashboot_agent.transport.conversation import ServerSettings
from flashboot_agent.transport.tcp import PullSettings, TcpTransport
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.trust.credentials import Credentials
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.base import now
from tests.component.agents import eventually
from tests.component.memory_catalog import MIB, MemoryArena, MemoryCatalog, Target, until
from tests.component.trust import Issuer

ARENA = "arena-" + "1" * 32
DATA = bytes(range(256)) * (3 * MIB // 256)
ISSUER = Issuer()


class Held:
    """A node's credentials, which may change."""

    def __init__(self, credentials: Credentials | None) -> None:
        self.version = 1
        self._held = credentials

    def current(self) -> Credentials | None:
        return self._held

    def install(self, credentials: Credentials | None) -> None:
        self._held = credentials
        self.version += 1


class World:
    """The agent of node `parent`, with one arena."""

    def __init__(self, hello: float = 20) -> None:
        self.arena = MemoryArena(ARENA, DATA)
        self.held = Held(ISSUER.issue_agent("parent"))
        settings = ServerSettings(hello=hello)
        self.server = TcpServer(MemoryCatalog(self.arena), "127.0.0.1", 0, settings=settings, credentials=self.held)
        self.peer = Peer(node="parent", address=self.server.address)

    def connect(self, own: Credentials | None, *, child: str = "child", node: str = "parent") -> Pull:
        peer = Peer(node=node, address=self.server.address)
        return TcpTransport(PullSettings(poll=0.1), Held(own)).connect(peer, ARENA, child, 10)

    def raw(self) -> socket.socket:
        host, port = self.server.address.split(":")
        return socket.create_connection((host, int(port)), timeout=20)

    def serves(self) -> None:
        pull, target = self.connect(ISSUER.issue_agent("child")), Target(len(DATA))
        with contextlib.closing(pull):
            while pull.advance(target.sink(pull), 1).state != "done":
                pass
        assert target.data == DATA


@pytest.fixture
def world() -> Iterator[World]:
    yield from living(World())


@pytest.fixture
def hasty() -> Iterator[World]:
    """Who did not introduce itself within half a second is given up."""
    yield from living(World(hello=0.5))


def living(world: World) -> Iterator[World]:
    yield world
    eventually(lambda: world.server.connections == 0, "all connections end")
    until(world.arena.changed, lambda: not world.arena.children)
    world.server.close()


def test_a_child_of_another_name_than_its_certificates_is_refused(world: World) -> None:
    with pytest.raises(PeerRefused, match=r"asks as node other, and its certificate is for .*agent/child"):
        world.connect(ISSUER.issue_agent("child"), child="other")
    world.serves()


def test_the_operators_certificate_opens_no_arena(world: World) -> None:
    with pytest.raises(PeerRefused, match="asks as node child"):
        world.connect(ISSUER.issue_operator())


@pytest.mark.parametrize("node", ["another", "paren", "parent.evil"])
def test_a_parent_of_another_name_is_refused_before_it_learns_what_is_asked(world: World, node: str) -> None:
    with pytest.raises(PeerRefused, match=f"parent {node} "):
        world.connect(ISSUER.issue_agent("child"), node=node)
    assert world.arena.children == []


@pytest.mark.parametrize(
    "own",
    [
        Issuer().issue_agent("child"),
        ISSUER.issue_agent("child", life=timedelta(minutes=5), at=now() - timedelta(days=1)),
    ],
    ids=["another CA", "expired"],
)
def test_a_certificate_that_does_not_count_opens_nothing(world: World, own: Credentials) -> None:
    with pytest.raises((PeerRefused, ParentUnreachable)):
        world.connect(own)
    assert world.arena.bytes_out == 0
    world.serves()


def test_an_agent_without_a_certificate_says_so_and_dials_nobody(world: World) -> None:
    with pytest.raises(NotReady, match="has no valid certificate yet"):
        world.connect(None)
    world.held.install(None)
    with pytest.raises(FlashBootError):
        world.connect(ISSUER.issue_agent("child"))
    world.held.install(ISSUER.issue_agent("parent"))
    world.serves()


@pytest.mark.parametrize(
    "sent", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70_000)]
)
def test_who_begins_no_handshake_is_given_up_without_a_word(hasty: World, sent: bytes) -> None:
    with hasty.raw() as child, contextlib.suppress(ConnectionError):
        child.sendall(sent)
        heard = child.recv(4096)
        assert b"FBCH" not in heard, "no frame, and no byte of an arena, without TLS"
    eventually(lambda: hasty.server.connections == 0, "given up")


def test_a_handshake_that_trickles_is_given_up(hasty: World) -> None:
    with hasty.raw() as child, contextlib.suppress(ConnectionError):
        child.settimeout(0.02)
        for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(2000):
            child.sendall(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                assert child.recv(1) == b""
                break
    eventually(lambda: hasty.server.connections == 0, "given up")


def test_a_new_certificate_counts_for_the_next_connection_and_running_ones_go_on(world: World) -> None:
    own = Held(ISSUER.issue_agent("child"))
    transport = TcpTransport(PullSettings(poll=0.1), own)
    running, target = transport.connect(world.peer, ARENA, "child", 10), Target(len(DATA))
    another = Issuer()
    world.held.install(another.issue_agent("parent"))
    with pytest.raises((PeerRefused, ParentUnreachable)):
        transport.connect(world.peer, ARENA, "child", 10)
    own.install(another.issue_agent("child"))
    transport.connect(world.peer, ARENA, "child", 10).close()
    with contextlib.closing(running):
        while running.advance(target.sink(running), 1).state != "done":
            pass
    assert target.data == DATA
