"""What is NIXL's own: when it does not serve another transport does, and no transfer lasts for ever."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Iterator

import pytest

from flashboot_agent.core.errors import DeadlineExceeded, ParentUnreachable
from flashboot_agent.transport.choose import connect
from flashboot_agent.transport.conversation import ServerSettings
from flashboot_agent.transport.nixl import NixlTransport
from flashboot_agent.transport.nixl_agent import Agent, address_of
from flashboot_agent.transport.tcp import TcpTransport
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.wire.arena import Peer
from tests.component.memory_catalog import MIB, MemoryArena, MemoryCatalog

ARENA = "arena-" + "1" * 32
NOWHERE = Peer(node="parent-1", address="127.0.0.1:1")
installed = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="the extra flashboot[nixl] is not installed"
)


def test_a_node_without_the_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ParentUnreachable, match=r"flashboot\[nixl\] is not installed"):
        NixlTransport(TcpTransport()).probe(NOWHERE)


@installed
@pytest.mark.parametrize(
    ("transports", "serves"), [("rc,self", False), ("^tcp", False), ("^sm", True), ("rc,tcp", True)]
)
def test_a_node_whose_ucx_may_not_connect_says_so(
    monkeypatch: pytest.MonkeyPatch, transports: str, serves: bool
) -> None:
    monkeypatch.setenv("UCX_TLS", transports)
    if serves:
        assert "NIXL over UCX" in NixlTransport(TcpTransport()).probe(NOWHERE)
        return
    with pytest.raises(ParentUnreachable, match=re.escape(f"UCX_TLS is {transports!r} here and lacks tcp")):
        NixlTransport(TcpTransport()).probe(NOWHERE)


@pytest.fixture
def plain_parent() -> Iterator[TcpServer]:
    server = TcpServer(MemoryCatalog(MemoryArena(ARENA, bytes(MIB))), "127.0.0.1", 0, settings=ServerSettings())
    yield server
    server.close()


@installed
def test_a_parent_that_does_not_serve_it_is_reached_by_tcp(plain_parent: TcpServer) -> None:
    peer = Peer(node="parent-1", address=plain_parent.address)
    connected = connect([NixlTransport(TcpTransport()), TcpTransport()], peer, ARENA, "child-1", 10)
    connected.pull.close()
    assert connected.transport == "tcp"
    assert "not nixl" in connected.reason
    assert "not configured to serve over NIXL" in connected.reason


def two_agents(memory: bytearray, room: bytearray) -> tuple[Agent, Agent]:
    """One that may write `memory` into the `room` of the other."""
    writer, owner = Agent("the writer"), Agent("the owner")
    writer.register(address_of(memoryview(memory)), len(memory))
    owner.register(address_of(memoryview(room)), len(room))
    writer.add_peer(owner.name, owner.metadata)
    return writer, owner


@installed
def test_a_write_is_there_when_it_returns() -> None:
    memory, room = bytearray(b"\x5a" * MIB), bytearray(MIB)
    writer, owner = two_agents(memory, room)
    writer.write(address_of(memoryview(memory)), address_of(memoryview(room)), MIB, 20)
    assert room == memory
    writer.close()
    owner.close()
    owner.close()


@installed
def test_a_transfer_that_stays_in_progress_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, room = bytearray(MIB), bytearray(MIB)
    writer, owner = two_agents(memory, room)
    monkeypatch.setattr(writer._nixl, "transfer", lambda handle: "PROC")
    monkeypatch.setattr(writer._nixl, "check_xfer_state", lambda handle: "PROC")
    with pytest.raises(DeadlineExceeded, match=r"the writer: 1048576 bytes were not written in 0\.05 s"):
        writer.write(address_of(memoryview(memory)), address_of(memoryview(room)), MIB, 0.05)
    writer.close()
    owner.close()


@installed
def test_nothing_is_written_to_an_agent_that_is_closed() -> None:
    """A parent that a child gave up reaches nothing any more: the child may unmap its memory."""
    memory, room = bytearray(b"\x5a" * MIB), bytearray(MIB)
    writer, owner = two_agents(memory, room)
    threads = threading.active_count()
    owner.close()
    with pytest.raises((ParentUnreachable, DeadlineExceeded)):
        writer.write(address_of(memoryview(memory)), address_of(memoryview(room)), MIB, 3)
    assert room == bytes(MIB)
    assert threading.active_count() <= threads
    writer.close()
