"""Several real agents: clones, chains, kills, damage on the way, refusals, deletion in the middle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from flashboot_agent.core.identity import arena_id, digest_of
from flashboot_agent.wire import attach
from flashboot_agent.wire.desired import Lane
from flashboot_agent.wire.place import Place
from tests.component.agents import EXPECTED, IDENTITY, MIB, Cluster, Node, eventually, wanted
from tests.component.clones import DATA, DIGEST, accused, attached_bytes, clone, proxy_to, seed, until_empty
from tests.component.proxy import ChunkProxy

IN_FLIGHT = 2 * MIB


Nodes = tuple[Node, Node, Node]


@pytest.fixture(scope="module")
def shared() -> Iterator[Nodes]:
    cluster = Cluster()
    try:
        # A parent that a test stalls is silent, and not overdue, so that the test has time to look.
        patient = {"FLASHBOOT_OVERDUE_FLOOR_MS": "60000"}
        yield (
            cluster.node("a", env=patient),
            cluster.node("b", env=patient),
            cluster.node("c", budget=64 * MIB, env=patient),
        )
    finally:
        print(cluster.logs())
        cluster.close()


@pytest.fixture
def nodes(shared: Nodes) -> Iterator[Nodes]:
    """Three nodes for all tests here; each test must be able to leave nothing behind."""
    started = {node.name: node.log.stat().st_size for node in shared}
    try:
        yield shared
        for node in shared:
            node.clear()
    finally:
        for node in shared:
            print(f"--- {node.name}\n{node.log.read_text()[started[node.name] :]}")


def until_happened(proxy: ChunkProxy, faults: int) -> None:
    eventually(lambda: len(proxy.happened) == faults, f"{faults} faults; happened: {proxy.happened}")


def test_a_clone_is_complete_before_its_engine_asks(nodes: Nodes) -> None:
    a, b, _ = nodes
    seed(a)
    uid = clone(b, a.peer)
    arena = b.until_sealed()
    assert (arena.way, arena.parent, arena.transport) == ("clone", "a", "tcp")
    assert (arena.bytes_in, arena.bytes, arena.watermark, arena.digest) == (len(DATA),) * 3 + (DIGEST,)
    assert arena.identity == digest_of(IDENTITY)
    assert arena.started_at
    assert arena.sealed_at
    assert (pod := b.pod(uid)) is not None
    assert pod.hello_at is None
    assert attached_bytes(b, uid) == DATA
    source = a.until_arena(lambda arena: arena.bytes_out == len(DATA), "all sent")
    assert source.children in ([], ["b"])
    metrics = b.get("/metrics")[1].decode()
    assert 'flashboot_arenas{state="sealed"} 1.0' in metrics
    assert "flashboot_clone_seconds_count " in metrics


def test_a_copy_ahead_of_a_drain_is_made_without_a_pod_and_stays_as_long_as_it_is_wanted(nodes: Nodes) -> None:
    a, b, _ = nodes
    seed(a)
    b.want(wanted("copy", lanes=[Lane(parents=[a.peer])]))
    arena = b.until_sealed()
    assert (arena.way, arena.parent, arena.digest, arena.pods) == ("clone", "a", DIGEST, [])
    b.want(wanted("hold"))
    uid = b.publish()
    b.want(wanted("hold", pods=[uid]))
    assert attached_bytes(b, uid) == DATA
    b.unpublish(uid)
    b.want()
    until_empty(b)


def test_a_middle_of_a_chain_that_is_killed_goes_on_and_nothing_is_received_twice(nodes: Nodes) -> None:
    a, b, c = nodes
    seed(a)
    with proxy_to(a) as (proxy, way):
        proxy.inject("stall", 10 * MIB)
        first = clone(b, way)
        second = clone(c, b.peer)
        proxy.wait_for("stall")
        # The child is as far as its parent, while the parent still receives.
        c.until_arena(lambda arena: arena.watermark == 10 * MIB and arena.state == "filling", "follows")
        half = b.until_arena(lambda arena: arena.watermark == 10 * MIB and arena.children == ["c"], "serves")
        assert half.bytes_in == 10 * MIB
        b.kill_agent()
        proxy.resume()
        b.start_agent()
        sealed = b.until_sealed()
        assert sealed.bytes_in == len(DATA), "what was received was received again"
        assert c.until_sealed().bytes_in == len(DATA)
        out = a.until_arena(lambda arena: arena.bytes_out >= len(DATA), "all sent").bytes_out
        assert out <= len(DATA) + IN_FLIGHT  # what was on its way when the child died
    for node, uid in ((b, first), (c, second)):
        assert attached_bytes(node, uid) == DATA
    assert c.until_sealed().parent == "b"


def test_an_agent_that_is_killed_again_and_again_receives_each_byte_once(nodes: Nodes) -> None:
    a, b, _ = nodes
    seed(a)
    with proxy_to(a) as (proxy, way):
        stalls = [17, 6 * MIB + 5, 6 * MIB + 6, 19 * MIB]
        for stall in stalls:
            proxy.inject("stall", stall)
        uid = clone(b, way)
        for number in range(1, len(stalls) + 1):
            until_happened(proxy, number)
            before = b.arena()
            b.kill_agent()
            b.start_agent()
            after = eventually(b.arena, "the arena is back")
            assert before is not None
            assert after.bytes_in >= before.watermark
        sealed = b.until_sealed()
        assert sealed.bytes_in == len(DATA)
        assert sealed.refetched_chunks == 0
    assert attached_bytes(b, uid) == DATA


def test_four_lanes_of_a_killed_agent_go_on_where_each_one_stopped(nodes: Nodes) -> None:
    a, b, c = nodes
    seed(a)
    with proxy_to(a) as (proxy, way):
        for offset in (3 * MIB, 9 * MIB, 15 * MIB + 1000, 21 * MIB):  # one in each lane
            proxy.inject("stall", offset)
        first = clone(b, way, lanes=4)
        until_happened(proxy, 4)
        half = b.until_arena(lambda arena: arena.watermark == 12 * MIB, "all lanes stalled, what came is verified")
        assert [lane.watermark for lane in half.lanes] == [3 * MIB] * 4
        assert half.bytes_in == 12 * MIB + 1000
        assert [lane.parent for lane in half.lanes] == ["a"] * 4
        second = clone(c, b.peer, lanes=4)
        c.until_arena(lambda arena: arena.watermark == 12 * MIB, "follows in every lane")
        b.kill_agent()
        proxy.resume()
        b.start_agent()
        for node in (b, c):
            sealed = node.until_sealed()
            assert sealed.bytes_in == len(DATA), "what was received was received again"
            assert sealed.refetched_chunks == 0
    for node, uid in ((b, first), (c, second)):
        assert attached_bytes(node, uid) == DATA


def test_a_flipped_byte_is_refused_counted_and_fetched_again(nodes: Nodes) -> None:
    a, b, _ = nodes
    seed(a)
    with proxy_to(a) as (proxy, way):
        proxy.inject("flip", 5 * MIB + 77)
        uid = clone(b, way)
        arena = b.until_sealed()
        assert proxy.happened == [("flip", 5 * MIB + 77)]
    assert arena.refetched_chunks == 1
    assert arena.accusations == []
    assert attached_bytes(b, uid) == DATA


def test_a_parent_that_dies_is_accused_and_the_next_one_goes_on_from_the_watermark(nodes: Nodes) -> None:
    a, b, c = nodes
    seed(a)
    clone(b, a.peer)
    b.until_sealed()
    with proxy_to(b) as (proxy, way):
        proxy.inject("cut", 7 * MIB)
        uid = clone(c, way, a.peer)
        arena = c.until_sealed()
    assert arena.parent == "a"
    assert accused(arena) == [("b", "ParentUnreachable")]
    assert arena.bytes_in == len(DATA)
    assert a.until_sealed().bytes_out <= 2 * len(DATA) - 7 * MIB
    assert attached_bytes(c, uid) == DATA


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"identity": digest_of({"other": "x"})}, "IdentityMismatch"),
        ({"digest": "xxh3:" + "0" * 16}, "DigestMismatch"),
        ({"layout_digest": digest_of({"other": "x"})}, "DigestMismatch"),
    ],
)
def test_another_identity_digest_or_layout_is_refused_before_the_first_byte(
    nodes: Nodes, facts: dict[str, Any], reason: str
) -> None:
    a, b, _ = nodes
    seed(a)
    uid = clone(b, a.peer, **facts)
    arena = b.until_arena(lambda arena: arena.problem, "problem")
    assert arena.accusations[0].problem.reason == reason
    assert arena.problem is not None
    assert arena.problem.reason == "CloneFailed"
    assert "a: arena-" in arena.problem.message
    assert (arena.bytes, b.held()) == (0, 0)
    assert a.until_sealed().bytes_out == 0
    with b.engine(uid) as engine:
        coming, _ = engine.until(attach.Coming)
        assert "every parent" in coming.note
    digest = a.until_sealed().layout_digest
    assert digest is not None
    right = {"identity": digest_of(IDENTITY), "digest": DIGEST, "layout_digest": digest}
    b.want(wanted("clone", lanes=[Lane(parents=[a.peer])], pods=[uid], **right))
    assert b.until_sealed().problem is None  # put right, it goes on by itself


def test_a_clone_beyond_the_budget_says_so_and_goes_on_once_there_is_room(nodes: Nodes) -> None:
    a, _, c = nodes
    seed(a)
    other = c.publish("other")
    mine = arena_id("22222222-2222-3333-4444-555555555555", EXPECTED, Place())
    hog = wanted("seed", arena=mine, seed_pod=other, pods=[other])
    c.want(hog)
    with c.engine(other) as engine:
        os.close(engine.allocate(48 * MIB))
        uid = c.publish()
        c.want(hog, wanted("clone", lanes=[Lane(parents=[a.peer])], pods=[uid]))
        arena = c.until_arena(lambda arena: arena.problem, "problem")
        assert arena.problem is not None
        assert arena.problem.reason == "InsufficientMemory"
        assert f"{64 * MIB} bytes {16 * MIB} are free" in arena.problem.message
        assert f"held are serving/tiny {48 * MIB} bytes ({mine}, seeding)" in arena.problem.message
        assert arena.accusations == []
    assert c.until_sealed().problem is None  # the seed went, and its memory with it


def test_a_clone_waits_for_a_parent_that_has_nothing_yet(nodes: Nodes) -> None:
    a, b, _ = nodes
    uid = a.publish()
    a.want(wanted("seed", seed_pod=uid, pods=[uid]))
    child = clone(b, a.peer)
    with a.engine(uid) as engine:
        os.close(engine.allocate(MIB))
        with b.engine(child) as waiting:
            coming, _ = waiting.until(attach.Coming)
            assert not coming.allocated
    seed(a)
    b.until_sealed()


def test_deletion_in_the_middle_of_a_clone_leaves_nothing(nodes: Nodes) -> None:
    a, b, c = nodes
    source = seed(a)
    with proxy_to(a) as (proxy, way):
        proxy.inject("stall", 9 * MIB)
        pods = [(a, source), (b, clone(b, way)), (c, clone(c, b.peer))]
        c.until_arena(lambda arena: arena.watermark == 9 * MIB, "follows")
        for node, _ in pods:
            node.want()
        for node in (b, c):  # at once, though their pods are still there
            until_empty(node)
        assert a.held() == 1  # its pod got the arena, and may still map it
        for node, uid in pods:
            node.unpublish(uid)
        until_empty(a)
        for node, _ in pods:
            assert node.observed().arenas == []


def test_a_pod_that_goes_in_the_middle_of_a_clone_ends_it_when_the_operator_is_away(nodes: Nodes) -> None:
    a, b, _ = nodes
    seed(a)
    with proxy_to(a) as (proxy, way):
        proxy.inject("stall", 9 * MIB)
        uid = b.publish()
        b.want(wanted("clone", lanes=[Lane(parents=[way])], pods=[uid]), ttl=1)
        proxy.wait_for("stall")
        eventually(b.arena, "filling")
        b.unpublish(uid)
        until_empty(b)


def test_a_parent_taken_from_the_list_is_left_for_the_next(nodes: Nodes) -> None:
    a, b, _ = nodes
    seed(a)
    with proxy_to(a) as (stalled, slow), proxy_to(a) as (_, fast):
        stalled.inject("stall", 3 * MIB)
        uid = clone(b, slow)
        stalled.wait_for("stall")
        b.want(wanted("clone", lanes=[Lane(parents=[fast])], pods=[uid]))
        arena = b.until_sealed()
        assert arena.bytes_in == len(DATA)
    assert attached_bytes(b, uid) == DATA


def test_a_source_stays_while_a_child_reads_from_it_and_goes_right_after(nodes: Nodes) -> None:
    a, b, _ = nodes
    uid = seed(a)
    with proxy_to(a) as (proxy, way):
        proxy.inject("stall", 9 * MIB)
        child = clone(b, way)
        proxy.wait_for("stall")
        a.unpublish(uid)
        a.want()
        eventually(lambda: not a.observed().pods, "the pod is gone")
        assert a.held() == 1
        proxy.resume()
        b.until_sealed()
        assert attached_bytes(b, child) == DATA
    until_empty(a)
