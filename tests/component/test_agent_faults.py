"""What may happen to a clone while it runs: each fault ends in a sealed arena with equal bytes, none twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import Lane
from tests.component.agents import MIB, Cluster, Node, eventually, wanted
from tests.component.clones import DATA, DIGEST, accused, attached_bytes, clone, proxy_to, seed, until_empty
from tests.component.trust import Issuer

Nodes = tuple[Node, Node, Node]
MIDDLE = {1: [9 * MIB + 5], 4: [2 * MIB + 5, 8 * MIB + 5, 14 * MIB + 5, 20 * MIB + 5]}
"""A byte in the middle of each lane, by the number of lanes."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[Nodes]:
    cluster = Cluster()
    try:
        yield cluster.node("a"), cluster.node("b"), cluster.node("c")
    finally:
        cluster.close()


@pytest.fixture
def nodes(shared: Nodes) -> Iterator[Nodes]:
    """`a` and `b` hold the arena, `c` is going to; each test must be able to leave nothing behind."""
    a, b, _ = shared
    started = {node.name: node.log.stat().st_size for node in shared}
    try:
        seed(a)
        clone(b, a.peer)
        b.until_sealed()
        yield shared
        for node in shared:
            node.clear()
    finally:
        for node in shared:
            print(f"--- {node.name}\n{node.log.read_text()[started[node.name] :]}")


@pytest.fixture(params=[1, 4])
def lanes(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def test_a_parent_that_is_killed_is_repaired_from_the_fallback(nodes: Nodes, lanes: int) -> None:
    a, b, c = nodes
    with proxy_to(b) as (proxy, way):
        for offset in MIDDLE[lanes]:
            proxy.inject("stall", offset)
        uid = clone(c, way, a.peer, lanes=lanes)
        proxy.wait_for("stall")
        b.kill_agent()
        proxy.resume()
        arena = c.until_sealed()
        assert arena.bytes_in == len(DATA)
        assert [node for node, _ in accused(arena)] == ["b"]
        assert {path.node for path in arena.paths} == {"a", "b"}
        assert sum(path.bytes_in for path in arena.paths) == len(DATA)
        assert attached_bytes(c, uid) == DATA
        b.start_agent()
    metrics = c.get("/metrics")[1].decode()
    assert 'flashboot_clone_bytes_total{direction="in",transport="tcp"}' in metrics
    assert "flashboot_clone_repairs_total" in metrics


def test_a_parent_that_is_stopped_is_repaired_from_the_fallback(nodes: Nodes, lanes: int) -> None:
    a, b, c = nodes
    assert b.agent is not None
    with proxy_to(b) as (proxy, way):
        for offset in MIDDLE[lanes]:
            proxy.inject("stall", offset)
        uid = clone(c, way, a.peer, lanes=lanes)
        proxy.wait_for("stall")
        b.agent.send_signal(signal.SIGSTOP)
        try:
            proxy.resume()
            arena = c.until_sealed()
        finally:
            b.agent.send_signal(signal.SIGCONT)
        assert (arena.bytes_in, accused(arena)) == (len(DATA), [("b", "Timeout")])
        assert attached_bytes(c, uid) == DATA


def test_a_parent_that_slows_down_to_nothing_is_overdue_and_left(nodes: Nodes, lanes: int) -> None:
    a, b, c = nodes
    with proxy_to(b) as (proxy, way):
        for offset in MIDDLE[lanes]:
            proxy.inject("stall", offset)
        uid = clone(c, way, a.peer, lanes=lanes)
        arena = c.until_sealed()
        assert (arena.bytes_in, accused(arena)) == (len(DATA), [("b", "Timeout")])
        assert "does not send those from" in arena.accusations[0].problem.message
        assert attached_bytes(c, uid) == DATA


def test_a_parent_that_lies_is_accused_of_its_chunk_and_left(nodes: Nodes, lanes: int) -> None:
    a, b, c = nodes
    with proxy_to(b) as (proxy, way):
        for number in range(3):  # each time that the chunk is asked for
            proxy.inject("flip", MIDDLE[lanes][-1] + number)
        uid = clone(c, way, a.peer, lanes=lanes)
        arena = c.until_sealed()
        assert (arena.refetched_chunks, accused(arena)) == (3, [("b", "DigestMismatch")])
        # The wrong chunk three times more, and each time what was in flight behind it.
        assert len(DATA) < arena.bytes_in <= len(DATA) + 2 * 3 * MIB
        assert attached_bytes(c, uid) == DATA


def test_a_source_that_dies_and_comes_back_goes_on(nodes: Nodes, lanes: int) -> None:
    a, _, c = nodes
    with proxy_to(a) as (proxy, way):
        for offset in MIDDLE[lanes]:
            proxy.inject("stall", offset)
        uid = clone(c, way, lanes=lanes)
        proxy.wait_for("stall")
        a.kill_agent()
        proxy.resume()
        c.until_arena(lambda arena: arena.problem, "told that every parent failed")
        a.start_agent()
        arena = c.until_sealed()
        assert (arena.bytes_in, arena.problem) == (len(DATA), None)
        assert attached_bytes(c, uid) == DATA


def test_a_link_that_is_cut_and_comes_back_goes_on_at_the_very_byte(nodes: Nodes, lanes: int) -> None:
    a, _, c = nodes
    with proxy_to(a) as (proxy, way):
        for offset in MIDDLE[lanes]:
            proxy.inject("cut", offset)
        uid = clone(c, way, lanes=lanes)
        arena = c.until_sealed()
        assert len(proxy.happened) == lanes
        assert (arena.bytes_in, arena.refetched_chunks) == (len(DATA), 0)
        assert attached_bytes(c, uid) == DATA


def test_a_holder_that_dies_in_the_middle_gets_the_arena_back(nodes: Nodes, lanes: int) -> None:
    a, _, c = nodes
    with proxy_to(a) as (proxy, way):
        for offset in MIDDLE[lanes]:
            proxy.inject("stall", offset)
        uid = clone(c, way, lanes=lanes)
        proxy.wait_for("stall")
        c.kill_holder()
        proxy.resume()
        assert c.until_sealed().bytes_in == len(DATA)
        c.start_holder()
        eventually(lambda: c.held() == 1, "deposited again")
        assert attached_bytes(c, uid) == DATA


def test_other_bytes_under_the_same_name_are_taken_when_the_operator_says_so(nodes: Nodes, lanes: int) -> None:
    """The source was lost and seeded anew: what came of the old bytes is of no use."""
    a, b, c = nodes
    other = os.urandom(len(DATA))
    with proxy_to(a) as (proxy, way):
        for offset in MIDDLE[lanes]:
            proxy.inject("stall", offset)
        uid = clone(c, way, lanes=lanes, digest=DIGEST)
        proxy.wait_for("stall")
        c.kill_agent()
        proxy.resume()
        for node in (a, b):
            node.clear()
        seed(a, other)
        c.start_agent()
        c.until_arena(lambda arena: arena.problem, "half of the old bytes, and nobody has the rest")
        digest = root_digest(chunk_digests(other))
        c.want(wanted("clone", lanes=[Lane(parents=[way])] * lanes, pods=[uid], digest=digest))
        c.until_arena(lambda arena: arena.state == "sealed" and arena.digest == digest, "the new bytes")
        with c.engine(uid) as engine:
            assert engine.attach()[1] == other


def test_lanes_pull_from_different_parents(nodes: Nodes) -> None:
    a, b, c = nodes
    uid = c.publish()
    c.want(wanted("clone", lanes=[Lane(parents=[a.peer]), Lane(parents=[b.peer])], pods=[uid]))
    arena = c.until_sealed()
    assert [lane.parent for lane in arena.lanes] == ["a", "b"]
    assert [(path.node, path.bytes_in) for path in arena.paths] == [("a", 12 * MIB), ("b", len(DATA) - 12 * MIB)]
    assert attached_bytes(c, uid) == DATA


def test_over_tls_nodes_clone_from_each_other_and_a_peer_of_another_name_is_refused(cluster: Cluster) -> None:
    issuer = Issuer()
    a, b, c = (cluster.node(name, issuer=issuer) for name in "abc")
    seed(a)
    first = clone(b, Peer(node="c", address=a.peer.address), a.peer, lanes=2)
    arena = b.until_sealed()
    assert accused(arena) == [("c", "PeerRefused")]
    assert "TLS 1.3 with flashboot://agent/a" in str(arena.transport_reason)
    b.kill_agent()
    b.start_agent()  # with the certificate that it kept
    second = clone(c, b.peer, lanes=2)
    assert c.until_sealed().parent == "b"
    for node, uid in ((b, first), (c, second)):
        assert attached_bytes(node, uid) == DATA
        node.clear()
    until_empty(b)
