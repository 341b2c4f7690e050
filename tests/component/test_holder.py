"""The holder as a process: its socket, its ending, what it maps, what a client can't do to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.core.errors import BadRequest, NotReady
from flashboot_agent.holder.client import HolderClient, HolderStats
from tests.component.agents import AGENT_FOLDER, MIB, Cluster, Node, eventually

NAME = "arena-" + "1" * 32


@pytest.fixture
def node() -> Iterator[Node]:
    cluster = Cluster(forked=False)  # what it maps and how large it is are the program's own
    node = cluster.node("n1", start=False, budget=1 << 30)
    node.start_holder()
    try:
        yield node
    finally:
        cluster.close()


@pytest.fixture
def client(node: Node) -> HolderClient:
    return HolderClient(str(node.run / "holder/holder.sock"))


def healthcheck(node: Node) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "flashboot_agent.holder", "healthcheck", "--run", str(node.run)],
        env={**os.environ, "PYTHONPATH": str(AGENT_FOLDER)},
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_a_stale_socket_is_replaced_and_the_probe_tells(node: Node, client: HolderClient) -> None:
    client.create(NAME, MIB, "small")
    first = client.stats()
    assert (first.arenas, first.used_bytes, first.budget_bytes) == (1, MIB, 1 << 30)
    assert json.loads(healthcheck(node).stdout)["arenas"] == 1
    node.kill_holder()
    failed = healthcheck(node)
    assert failed.returncode == 1
    assert b"does not answer at" in failed.stderr
    with pytest.raises(NotReady, match="can't be reached"):
        client.stats()
    node.start_holder()
    again = eventually(lambda: _stats(client), "the holder is back")
    assert again.instance != first.instance
    assert again.arenas == 0


def _stats(client: HolderClient) -> HolderStats | None:
    try:
        return client.stats()
    except NotReady:
        return None


def test_it_maps_no_arena_and_stays_tiny(node: Node, client: HolderClient) -> None:
    kept = client.create(NAME, 256 * MIB, "small")
    assert node.holder is not None
    proc = Path(f"/proc/{node.holder.pid}")
    assert "memfd:" not in (proc / "maps").read_text()
    assert len(list((proc / "task").iterdir())) == 1
    resident = int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 40 * MIB
    os.close(kept.data)
    os.close(kept.record)


def test_it_serves_others_during_a_long_create_and_undoes_one_whose_client_goes(
    node: Node, client: HolderClient
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impatient:
        impatient.connect(client.path)
        impatient.send(json.dumps({"op": "create", "arena": NAME, "bytes": 900 * MIB}).encode())
        eventually(lambda: client.stats().used_bytes, "create began")
        assert client.stats().arenas == 0, "it answered in between"
    eventually(lambda: client.stats().used_bytes == 0, "undone")
    assert node.memory_files() == []


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"{",
        b"[]",
        b'{"op": "format"}',
        b'{"op": "get", "arena": "../x"}',
        b'{"op": "create", "arena": "arena-11111111111111111111111111111111", "bytes": -1}',
        b'{"op": "create", "arena": "arena-11111111111111111111111111111111", "bytes": 1, "pages": "vast"}',
        b'{"op": "put", "arena": "arena-11111111111111111111111111111111", "bytes": 1}',
        b'{"op": "' + b"x" * 100000,
        b"[" * 60000,
    ],
)
def test_nonsense_is_refused_and_changes_nothing(client: HolderClient, request_: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(20)
        sock.connect(client.path)
        sock.send(request_)
        answer = sock.recv(65536)
    if request_:
        assert json.loads(answer)["error"] == "BadRequest"
    assert client.stats().arenas == 0


def test_only_its_own_user_may_connect(client: HolderClient) -> None:
    assert os.stat(client.path).st_mode & 0o777 == 0o600


def test_descriptors_that_are_too_small_are_not_taken(client: HolderClient) -> None:
    small = os.memfd_create("small")
    with pytest.raises(BadRequest, match="smaller"):
        client.put(NAME, MIB, small, small)
    os.close(small)
