"""A pod of several ranks on one socket: each has a session, an arena and a phase; what concerns all is done by all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from flashboot_agent.core.identity import arena_id, digest_of
from flashboot_agent.wire import attach
from flashboot_agent.wire.desired import Lane, WantedArena
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem
from tests.component.agents import EXPECTED, MIB, REPLICA_UID, Cluster, Engine, Node, eventually, wanted

PLACES = [Place(tp=0), Place(tp=1)]
ARENAS = [arena_id(REPLICA_UID, EXPECTED, place) for place in PLACES]
DATA = [os.urandom(2 * MIB + 512), os.urandom(3 * MIB)]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    cluster = Cluster()
    try:
        yield cluster.node("n1"), cluster.node("n2")
    finally:
        cluster.close()


@pytest.fixture
def nodes(pair: tuple[Node, Node]) -> Iterator[tuple[Node, Node]]:
    """Two nodes for all tests here; each must be able to leave nothing behind."""
    started = [node.log.stat().st_size for node in pair]
    try:
        yield pair
        for node in pair:
            node.clear()
    finally:
        for node, size in zip(pair, started, strict=True):
            print(f"--- {node.name}\n{node.log.read_text()[size:]}")


def want(role: Any, rank: int, **facts: Any) -> WantedArena:
    return wanted(role, arena=ARENAS[rank], place=PLACES[rank], **facts)


def to_seed(node: Node) -> str:
    uid = node.publish()
    node.want(*(want("seed", rank, seed_pod=uid, pods=[uid]) for rank in (0, 1)))
    return uid


def seeded(node: Node) -> str:
    uid = to_seed(node)
    with node.engine(uid, place=PLACES[0]) as one, node.engine(uid, place=PLACES[1]) as two:
        for engine, data in zip((one, two), DATA, strict=True):
            engine.seed(data)
        eventually(lambda: (pod := node.pod(uid)) and pod.phase == "attached", "both ranks attached")
    return uid


def phases(node: Node, uid: str) -> dict[str, str]:
    pod = node.pod(uid)
    return {str(rank.place): rank.phase for rank in pod.ranks} if pod else {}


def coming(engine: Engine) -> attach.Coming:
    message, fds = engine.receive()
    assert isinstance(message, attach.Coming), f"{message!r} with {len(fds)} descriptors"
    return message


def test_each_rank_seeds_an_arena_of_its_own_and_the_pod_is_attached_with_the_last(nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    uid = to_seed(node)
    eventually(lambda: phases(node, uid) == {"tp0": "published", "tp1": "published"}, "both expected")
    with node.engine(uid, place=PLACES[0]) as one, node.engine(uid, place=PLACES[1]) as two:
        one.seed(DATA[0])
        two.until(attach.Seed)
        eventually(lambda: phases(node, uid) == {"tp0": "attached", "tp1": "seeding"}, "half of it")
        pod = node.pod(uid)
        assert pod is not None
        assert (pod.phase, pod.attached_at) == ("seeding", None)
        two.send(attach.Trouble(problem=Problem(reason="CheckpointMissing", message="x"), place=PLACES[1]))
        eventually(lambda: (pod := node.pod(uid)) and [bool(r.problem) for r in pod.ranks] == [False, True], "whose")
    assert [node.until_sealed(ARENAS[0]).bytes, node.arena(ARENAS[1])] == [len(DATA[0]), None]


def test_no_rank_measures_memory_before_the_arenas_of_all_ranks_have_theirs(nodes: tuple[Node, Node]) -> None:
    """Rank 1 is delayed: its clone has no parent yet. Rank 0 holds all its bytes and is not let go."""
    source, node = nodes
    holder = seeded(source)
    source.want(*(want("hold", rank, pods=[holder]) for rank in (0, 1)))
    uid = node.publish()
    parents = [Lane(parents=[source.peer])]
    node.want(want("clone", 0, pods=[uid], lanes=parents), want("clone", 1, pods=[uid]))
    with node.engine(uid, place=PLACES[0]) as one, node.engine(uid, place=PLACES[1]) as two:
        node.until_sealed(ARENAS[0])
        for _ in range(3):  # each about half a second
            assert not coming(two).allocated
        while (said := coming(one)).watermark < len(DATA[0]):
            assert not said.allocated
        assert not said.allocated
        assert "tp1" in coming(one).note
        node.want(*(want("clone", rank, pods=[uid], lanes=parents) for rank in (0, 1)))
        assert one.attach()[1] == DATA[0]
        assert two.attach()[1] == DATA[1]
        eventually(lambda: phases(node, uid) == {"tp0": "attached", "tp1": "attached"}, "both attached")
        pod = node.pod(uid)
        assert pod is not None
        assert [rank.way for rank in pod.ranks] == ["clone", "clone"]


def test_a_rank_whose_memory_is_there_lets_the_others_measure_before_its_bytes_are(nodes: tuple[Node, Node]) -> None:
    """What counts is memory, not bytes: a parent that stops in the middle keeps no rank from measuring."""
    source, _ = nodes
    holder = to_seed(source)
    with source.engine(holder, place=PLACES[0]) as one, source.engine(holder, place=PLACES[1]) as two:
        one.seed(DATA[0])
        fd = two.allocate(len(DATA[1]))  # reserved, and not one byte of it
        os.close(fd)
        other = source.publish()
        source.want(*(want("seed", rank, seed_pod=holder, pods=[holder, other]) for rank in (0, 1)))
        with source.engine(other, place=PLACES[0]) as waiting, source.engine(other, place=PLACES[1]) as last:
            assert waiting.attach()[1] == DATA[0]
            assert coming(last).allocated
        source.unpublish(other)


def test_ranks_wait_for_memory_in_other_pods_of_their_replica_and_say_where(nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    holder = node.publish()
    node.want(want("seed", 0, seed_pod=holder, pods=[holder]))
    with node.engine(holder, place=PLACES[0]) as engine:
        engine.seed(DATA[0])
    uid, late = node.publish(), "rank tp1 of pod m-0-1 on n2"
    node.want(want("clone", 0, pods=[holder, uid], elsewhere={uid: [late]}))
    with node.engine(uid, place=PLACES[0]) as waiting, node.engine(holder, place=PLACES[0]) as other:
        assert other.attach()[1] == DATA[0], "only those of that replica wait"
        said = coming(waiting)
        assert not said.allocated
        assert said.note == f"all bytes are here; no memory is reserved yet for {late}"
        node.want(want("clone", 0, pods=[holder, uid]))
        assert waiting.attach()[1] == DATA[0]


def test_half_a_seed_is_dropped_when_its_engine_ends_and_a_whole_one_is_kept(nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    uid = to_seed(node)
    with node.engine(uid, place=PLACES[0]) as one, node.engine(uid, place=PLACES[1]) as two:
        one.seed(DATA[0])
        os.close(two.allocate(len(DATA[1])))
        eventually(lambda: phases(node, uid) == {"tp0": "attached", "tp1": "seeding"}, "half of it")
    eventually(lambda: node.held() == 0 and not node.memory_files(), "both ranks' arenas freed")
    with node.engine(uid, place=PLACES[0]) as one, node.engine(uid, place=PLACES[1]) as two:
        one.seed(DATA[0])  # both again
        two.seed(DATA[1])
    eventually(lambda: phases(node, uid) == {"tp0": "published", "tp1": "published"}, "engine gone")
    for arena, data in zip(ARENAS, DATA, strict=True):
        assert node.until_sealed(arena).bytes == len(data)


def test_of_two_copies_of_a_model_in_one_pod_one_seeds_and_the_other_shares(nodes: tuple[Node, Node]) -> None:
    """Plain data parallelism: the copies have equal ranks, and equal bytes."""
    node, _ = nodes
    uid = node.publish()
    node.want(want("seed", 0, seed_pod=uid, pods=[uid]))
    with node.engine(uid, place=PLACES[0]) as first:
        first.until(attach.Seed)
        with node.engine(uid, place=PLACES[0]) as second:
            assert "another engine process" in coming(second).note
            first.send(attach.Allocate(bytes=len(DATA[0])))
            for fd in first.until(attach.Writable)[1]:
                os.close(fd)
            assert coming(second).note
            first.close()  # it crashed: the other takes over
            assert second.seed(DATA[0]).bytes == len(DATA[0])


def test_ranks_for_which_arenas_of_their_identity_are_here_do_not_wait_for_those_that_are_named(
    nodes: tuple[Node, Node],
) -> None:
    """The operator took them for engines of another kind, and is away."""
    node, _ = nodes
    holder, uid = seeded(node), node.publish()
    key = digest_of({"template": "t2"})
    named = [
        want("clone", rank, pods=[uid]).model_copy(
            update={"arena": arena_id(REPLICA_UID, key, place), "expected_identity": key}
        )
        for rank, place in enumerate(PLACES)
    ]
    node.want(*(want("hold", rank, pods=[holder]) for rank in (0, 1)), *named)
    with node.engine(uid, place=PLACES[0]) as one:
        assert "tp1" in coming(one).note  # it has not asked, and nobody knows for what it will
        with node.engine(uid, place=PLACES[1]) as two:
            for engine, data in zip((one, two), DATA, strict=True):
                assert engine.attach()[1] == data


def test_a_pod_that_is_elected_after_another_of_its_node_does_not_wait_for_that(nodes: tuple[Node, Node]) -> None:
    """The first one sits there with a checkpoint that is broken, and its connection stays open."""
    node, _ = nodes
    stuck, next_one = node.publish(), node.publish()
    node.want(want("seed", 0, seed_pod=stuck, pods=[stuck, next_one]))
    with node.engine(stuck, place=PLACES[0]) as first, node.engine(next_one, place=PLACES[0]) as second:
        first.until(attach.Seed)
        node.want(want("seed", 0, seed_pod=next_one, pods=[stuck, next_one]))
        assert second.seed(DATA[0]).bytes == len(DATA[0])


def test_a_pod_cannot_have_ranks_without_end(nodes: tuple[Node, Node]) -> None:
    node, _ = nodes
    uid = node.publish()
    for tp in range(64):
        with node.engine(uid, place=Place(tp=tp)) as engine:
            coming(engine)
    with node.engine(uid, place=Place(tp=64)) as engine:
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "BadRequest"
        assert "64 ranks already" in refused.problem.message
        assert engine.closed()
