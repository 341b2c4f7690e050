"""A node whose memory is short: which copies make room, which never do, what is told of it. Real agents and holders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.wire import attach
from flashboot_agent.wire.desired import Eviction, Lane, Role, WantedArena
from tests.component.agents import MIB, Cluster, Node, eventually, wanted

SIZE = 8 * MIB
DATA = os.urandom(SIZE)
A, B, C, D = (f"arena-{digit * 32}" for digit in "abcd")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def shared(nodes: Cluster) -> Node:
    """Room for two arenas of SIZE, not for three; records and rounding are beside it."""
    return nodes.node("n1", budget=2 * SIZE + MIB)


@pytest.fixture(scope="module")
def other(nodes: Cluster) -> Node:
    return nodes.node("n2")


def model(name: str) -> str:
    """The ModelReplica of an arena: each has one of its own."""
    return f"m-{name[-1]}"


def of_model(name: str, role: Role, **facts: Any) -> WantedArena:
    uid = f"{ord(name[-1]):08x}-0000"
    owner = {"model_replica": model(name), "model_replica_uid": uid}
    return wanted(role, arena=name, **facts).model_copy(update=owner)


def seeding(name: str, uid: str) -> WantedArena:
    return of_model(name, "seed", seed_pod=uid, pods=[uid])


def idle(name: str, eviction: Eviction, **facts: Any) -> WantedArena:
    return of_model(name, "hold", eviction=eviction, **facts)


def left_behind(node: Node, name: str, *others: WantedArena) -> None:
    """A pod seeds the arena and goes."""
    uid = node.publish(model(name))
    node.want(seeding(name, uid), *others)
    with node.engine(uid) as engine:
        engine.seed(DATA)
    node.want(idle(name, "spare"), *others)
    node.unpublish(uid)
    eventually(lambda: not node.observed().pods, "the pod has gone")


def asks_for_memory(node: Node, name: str, nbytes: int, *others: WantedArena) -> attach.Writable | attach.Refused:
    """What a seed of another arena gets."""
    uid = node.publish(model(name))
    node.want(seeding(name, uid), *others)
    with node.engine(uid) as engine:
        engine.until(attach.Seed)
        engine.send(attach.Allocate(bytes=nbytes))
        message, fds = engine.receive()
        for fd in fds:
            os.close(fd)
    node.unpublish(uid)
    assert isinstance(message, attach.Writable | attach.Refused), message
    return message


def held(node: Node) -> set[str]:
    return {arena.arena for arena in node.observed().arenas if arena.state == "sealed"}


def test_the_one_used_longest_ago_goes_and_is_told_also_after_a_restart(node: Node) -> None:
    left_behind(node, A)
    left_behind(node, B, idle(A, "spare"))
    uid = node.publish(model(A))  # A is used once more, so that B is the older one now
    node.want(idle(A, "spare", pods=[uid]), idle(B, "spare"))
    with node.engine(uid) as engine:
        assert engine.attach()[1] == DATA
    node.want(idle(A, "spare"), idle(B, "spare"))
    node.unpublish(uid)
    eventually(lambda: not node.observed().pods, "the pod has gone")
    node.kill_agent()
    node.start_agent()
    assert isinstance(asks_for_memory(node, C, SIZE, idle(A, "spare"), idle(B, "spare")), attach.Writable)
    assert held(node) == {A}
    (gone,) = node.observed().evicted
    assert (gone.arena, gone.bytes, gone.model_replica) == (B, SIZE, "m-b")
    assert gone.message == "its memory was needed for rank tp0 of serving/m-c"
    assert "flashboot_arenas_evicted_total 1.0" in node.get("/metrics")[1].decode()


def test_one_that_is_elsewhere_goes_before_the_last_of_its_kind(node: Node) -> None:
    left_behind(node, A)
    left_behind(node, B, idle(A, "last"))
    assert isinstance(asks_for_memory(node, C, SIZE, idle(A, "last"), idle(B, "spare")), attach.Writable)
    assert held(node) == {A}


def test_nothing_goes_when_it_would_not_suffice(node: Node) -> None:
    left_behind(node, A)
    left_behind(node, B, idle(A, "spare"))
    answer = asks_for_memory(node, C, 3 * SIZE, idle(A, "spare"), idle(B, "spare"))
    assert isinstance(answer, attach.Refused)
    assert answer.problem.reason == "InsufficientMemory"
    assert held(node) == {A, B}
    assert A in answer.problem.message, "who has the memory"
    assert B in answer.problem.message


def test_what_a_pod_uses_or_the_operator_needs_never_goes(node: Node) -> None:
    left_behind(node, A)
    uid = node.publish(model(B))
    node.want(seeding(B, uid), idle(A, "never"))
    with node.engine(uid) as engine:
        engine.seed(DATA)
        answer = asks_for_memory(node, C, SIZE, idle(A, "never"), idle(B, "spare", pods=[uid]))
    assert isinstance(answer, attach.Refused)
    assert answer.problem.reason == "InsufficientMemory"
    assert held(node) == {A, B}


def test_what_a_child_reads_goes_only_once_it_is_through(node: Node, other: Node) -> None:
    """The child, a clone on another node, is slowed down to a MiB a second."""
    left_behind(node, A)
    slow, never = idle(A, "spare", egress_bytes_per_second=MIB), idle(B, "never")
    left_behind(node, B, slow)
    uid = other.publish(model(A))
    other.want(of_model(A, "clone", lanes=[Lane(parents=[node.peer])], pods=[uid]))
    other.until_arena(lambda arena: arena.watermark > 0, "the clone has begun", A)
    assert isinstance(asks_for_memory(node, C, SIZE, slow, never), attach.Refused)
    node.want(idle(A, "spare"), never)
    assert other.until_sealed(A).digest == root_digest(chunk_digests(DATA))

    def room() -> bool:
        return isinstance(asks_for_memory(node, C, SIZE, idle(A, "spare"), never), attach.Writable)

    eventually(room, "the child has let go")
    assert held(node) == {B}
    other.clear()


def test_a_clone_makes_room_too(node: Node, other: Node) -> None:
    left_behind(node, A)
    left_behind(node, B, idle(A, "spare"))
    left_behind(other, D)
    uid = node.publish(model(D))
    clone = of_model(D, "clone", lanes=[Lane(parents=[other.peer])], pods=[uid])
    node.want(clone, idle(A, "spare"), idle(B, "spare"))
    node.until_sealed(D)
    assert held(node) == {B, D}
    assert not [each for each in node.observed().arenas if each.problem is not None]
    other.clear()
