"""Fixtures of the component tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.transport.conversation import ServerSettings
from flashboot_agent.transport.tcp_server import TcpServer
from tests.component.agents import Cluster, Node
from tests.component.memory_catalog import MemoryArena, MemoryCatalog, until
from tests.component.streams import LARGE, SMALL, published
from tests.component.sync_server import Server
from tests.component.tcp_peers import ARENA, DATA, Start


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An empty mini cluster; what its agents logged is shown when the test fails."""
    cluster = Cluster()
    try:
        yield cluster
    finally:
        print(cluster.logs())
        cluster.close()


@pytest.fixture
def node(shared: Node) -> Iterator[Node]:
    """The one node of all tests of a module (its `shared`); each must be able to leave nothing behind."""
    started = shared.log.stat().st_size
    try:
        yield shared
        shared.clear()
    finally:
        print(shared.log.read_text()[started:])


@pytest.fixture
def arena() -> MemoryArena:
    return MemoryArena(ARENA, DATA)


@pytest.fixture
def growing() -> MemoryArena:
    """Without a byte yet."""
    return MemoryArena(ARENA, DATA, watermark=0)


@pytest.fixture
def start(arena: MemoryArena) -> Iterator[Start]:
    servers: list[TcpServer] = []

    def start(**settings: float) -> TcpServer:
        chosen = ServerSettings(**settings)  # type: ignore[arg-type]
        servers.append(TcpServer(MemoryCatalog(arena), "127.0.0.1", 0, settings=chosen))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
    until(arena.changed, lambda: not arena.children)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, bytes, bytes]]:
    """A delta of three windows on a server, its base and what it makes of it; for all tests of a module."""
    with published(tmp_path_factory.mktemp("large"), LARGE) as found:
        yield found


@pytest.fixture
def small(tmp_path: Path) -> Iterator[tuple[Server, bytes, bytes]]:
    """The same of a few spans, for one test."""
    with published(tmp_path / "published", SMALL) as found:
        yield found
