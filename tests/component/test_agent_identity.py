"""An engine of another full identity than the arena that the operator names: real agents, the test is the operator."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.identity import arena_id, digest_of
from flashboot_agent.wire import attach
from flashboot_agent.wire.desired import Lane
from flashboot_agent.wire.observed_pod import ObservedRank
from flashboot_agent.wire.place import Place
from tests.component.agents import ARENA, IDENTITY, MIB, REPLICA_UID, Cluster, Node, eventually, wanted

DATA, OTHER_DATA = os.urandom(2 * MIB + 512), os.urandom(MIB + 4096)
OTHER = {**IDENTITY, "dtype": "float8"}
OWN = arena_id(REPLICA_UID, digest_of({"template": "t1", "identity": digest_of(OTHER)}), Place())
"""The arena that the operator names for engines of OTHER."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    cluster = Cluster()
    try:
        yield cluster.node("n1", env={"FLASHBOOT_MISMATCH_SECONDS": "1000"})
    finally:
        cluster.close()


def seeded(node: Node, arena: str = ARENA, data: bytes = DATA, identity: dict[str, str] = IDENTITY) -> str:
    uid = node.publish()
    node.want(wanted("hold"), wanted("seed", arena=arena, seed_pod=uid, pods=[uid]))
    with node.engine(uid, identity=identity) as engine:
        engine.seed(data, identity)
        eventually(lambda: (pod := node.pod(uid)) and pod.phase == "attached", "seed attached")
    return uid


def rank_of(node: Node, uid: str) -> ObservedRank:
    pod = node.pod(uid)
    assert pod is not None
    return pod.ranks[0]


def outcomes(node: Node, outcome: str) -> float:
    text = node.get("/metrics")[1].decode()
    line = f'flashboot_identity_mismatches_total{{outcome="{outcome}"}}'
    return next(float(each.removeprefix(line)) for each in text.splitlines() if each.startswith(line))


def test_an_engine_gets_the_resident_arena_of_its_own_identity(node: Node) -> None:
    first = seeded(node)
    second = seeded(node, OWN, OTHER_DATA, OTHER)
    third, before = node.publish(), outcomes(node, "resident")
    node.want(wanted("hold", pods=[first, third]), wanted("hold", arena=OWN, pods=[second]))
    with node.engine(third, identity=OTHER) as engine:
        ready, data = engine.attach()
        assert (ready.arena, ready.identity) == (OWN, digest_of(OTHER))
        assert data == OTHER_DATA
        eventually(lambda: rank_of(node, third).phase == "attached", "attached")
    rank = rank_of(node, third)
    assert (rank.arena, rank.identity, rank.problem) == (OWN, digest_of(OTHER), None)
    assert outcomes(node, "resident") == before + 1
    node.want(wanted("hold", pods=[first, third]))  # its pod keeps the arena, whatever the operator lists
    node.unpublish(second)
    eventually(lambda: not node.pod(second), "second gone")
    node.until_sealed(OWN)


def test_of_another_object_no_arena_is_given_though_its_identity_is_equal(node: Node) -> None:
    first = seeded(node)
    stranger = node.publish()
    foreign = {"arena": OWN, "model_replica_uid": "99999999-2222-3333-4444-555555555555"}
    node.want(
        wanted("hold", pods=[first]),
        wanted("seed", seed_pod=stranger, pods=[stranger]).model_copy(update=foreign),
    )
    with node.engine(stranger, identity=OTHER) as engine:
        engine.seed(OTHER_DATA, OTHER)
    node.until_sealed(OWN)
    uid = node.publish()
    held = wanted("hold", pods=[stranger]).model_copy(update=foreign)
    node.want(wanted("hold", pods=[first, uid], refused=[uid]), held)
    with node.engine(uid, identity=OTHER) as engine:
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "IdentityMismatch"


def test_a_refusal_names_fields_values_and_the_way_out(node: Node) -> None:
    first = seeded(node)
    uid, before = node.publish(), outcomes(node, "refused")
    node.want(wanted("hold", pods=[first, uid], refused=[uid]))
    with node.engine(uid, identity={**OTHER, "arg.kv_cache_dtype": "fp8_e4m3"}) as engine:
        refused, _ = engine.until(attach.Refused)
    text = refused.problem.message
    assert refused.problem.reason == "IdentityMismatch"
    assert f"arg.kv_cache_dtype: engine 'fp8_e4m3', arena {ARENA} has none" in text
    assert f"dtype: engine 'float8', arena {ARENA} 'bfloat16'" in text
    assert "transfer.onMismatch of the ModelReplica is Fail" in text
    assert rank_of(node, uid).problem == refused.problem
    assert outcomes(node, "refused") == before + 1


def test_it_waits_for_the_operator_and_then_seeds_an_arena_of_its_own(node: Node) -> None:
    first = seeded(node)
    uid, before = node.publish(), outcomes(node, "checkpoint")
    node.want(wanted("hold", pods=[first, uid]))
    with node.engine(uid, identity=OTHER) as engine:
        coming, _ = engine.until(attach.Coming)
        assert not coming.allocated
        assert "dtype: engine 'float8'" in coming.note
        assert "the operator looks for an arena of this identity" in coming.note
        eventually(lambda: rank_of(node, uid).problem, "trouble shown")
        rank = rank_of(node, uid)
        assert rank.identity == digest_of(OTHER)
        assert rank.problem is not None
        assert rank.problem.reason == "IdentityMismatch"
        node.want(wanted("hold", pods=[first]), wanted("seed", arena=OWN, seed_pod=uid, pods=[uid]))
        ready = engine.seed(OTHER_DATA, OTHER)
        assert (ready.arena, ready.digest) == (OWN, root_digest(chunk_digests(OTHER_DATA)))
        eventually(lambda: rank_of(node, uid).problem is None, "trouble gone")
    assert rank_of(node, uid).way == "seed"
    assert outcomes(node, "checkpoint") == before + 1


def test_without_a_word_of_the_operator_it_is_refused_in_the_end(cluster: Cluster) -> None:
    node = cluster.node("n1", env={"FLASHBOOT_MISMATCH_SECONDS": "1"})
    first, uid = seeded(node), node.publish()
    node.want(wanted("hold", pods=[first, uid]))
    with node.engine(uid, identity=OTHER) as engine:
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "IdentityMismatch"
        assert "the operator named no other arena within 1 s" in refused.problem.message


def test_an_arena_of_its_identity_on_another_node_is_cloned(cluster: Cluster) -> None:
    one, two = cluster.node("n1"), cluster.node("n2")
    seeded(one, OWN, OTHER_DATA, OTHER)
    first, uid = seeded(two), two.publish()
    two.want(wanted("hold", pods=[first, uid]))
    with two.engine(uid, identity=OTHER) as engine:
        engine.until(attach.Coming)
        clone = wanted("clone", arena=OWN, identity=digest_of(OTHER), lanes=[Lane(parents=[one.peer])], pods=[uid])
        two.want(wanted("hold", pods=[first]), clone)
        ready, data = engine.attach()
        assert (ready.arena, data) == (OWN, OTHER_DATA)
    assert rank_of(two, uid).way == "clone"
