"""The learned map: which replicas share arenas, by what their engines asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flashboot_agent.core.identity import arena_id, digest_of
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.events import happened, transitions
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import Agent, Pod, World
from flashboot_operator.core.learned import Kinds, kinds_of, remembered
from flashboot_operator.core.plan import ArenaPlan, Memory, Owner
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from tests.unit.operatorkit import ARENA, EXPECTED, HASH, NOW, OWNER_UID, agent, arena, owner, pod, seen, uid, world

MINE, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
"""What an engine asks for, and what the resident arena is."""

LOADS: dict[str, Any] = {"transfer": {"onMismatch": "LoadFromCheckpoint"}}
NEW_HASH = "0" * 12
NEW_EXPECTED = expected_identity(owner().spec, template_hash=NEW_HASH, gpu_product="cpu", architecture="amd64")
OWN = digest_of({"expected": EXPECTED, "identity": MINE})
"""Key of the set that a pod of MINE seeds when its expected identity's is OTHER's."""


def asked(name: str, identity: str = MINE, phase: str = "coming", *, at: int = 0, **more: Any) -> ObservedPod:
    """A pod whose only rank has said hello."""
    said = seen(name, phase)
    stamp = NOW.replace(second=at)
    ranks = [rank.model_copy(update={"identity": identity, "hello_at": stamp} | more) for rank in said.ranks]
    return said.model_copy(update={"ranks": ranks})


def resident(node: str, identity: str = OTHER, *pods: ObservedPod, key: str = EXPECTED, **more: Any) -> Agent:
    held = arena(identity=identity, name=arena_id(OWNER_UID, key, Place()), expected_identity=key, **more)
    return agent(node, arenas=[held], pods=list(pods))


def kinds(facts: World, who: Owner | None = None, learned: dict[str, str] | None = None) -> Kinds:
    return kinds_of(who or owner(), facts, learned or {})


def key_of(name: str, facts: World, who: Owner | None = None, learned: dict[str, str] | None = None) -> str:
    return kinds(facts, who, learned).keys[uid(name)]


def plans(facts: World, who: Owner | None = None, memory: Memory | None = None) -> dict[str, ArenaPlan]:
    """By key."""
    return {plan.expected: plan for plan in plan_replica(who or owner(), facts, memory or Memory())}


MISMATCH = Problem(reason="IdentityMismatch", message="dtype: engine 'float8', arena a 'bfloat16'")


def mismatched(told: Problem | None = MISMATCH) -> World:
    """n1 holds OTHER, p2 on n2 asks for MINE, and its agent has named what differs."""
    pods = [pod("p1", "n1"), pod("p2", "n2", at=1)]
    first = asked("p1", OTHER, "attached", arena=ARENA)
    return world(pods, [resident("n1", OTHER, first), agent("n2", pods=[asked("p2", problem=told)])])


# Which set ------------------------------------------------------------------------------------------------------


def test_a_pod_that_has_not_asked_belongs_to_its_expected_identity() -> None:
    facts = world([pod("p1", "n1")], [agent("n1", pods=[seen("p1")])])
    assert key_of("p1", facts) == EXPECTED
    assert kinds(facts).heard == frozenset()


def test_a_pod_that_asks_for_what_its_expected_identity_holds_gets_that() -> None:
    facts = world([pod("p2", "n2")], [resident("n1", MINE), agent("n2", pods=[asked("p2")])])
    assert key_of("p2", facts) == EXPECTED
    assert kinds(facts).learned == {}


def test_a_resident_arena_of_the_identity_asked_for_is_used_whatever_its_key() -> None:
    facts = world([pod("p2", "n2", hash=NEW_HASH)], [resident("n1", MINE), agent("n2", pods=[asked("p2")])])
    for who in (owner(), owner(**LOADS)):
        assert key_of("p2", facts, who) == EXPECTED
        assert kinds(facts, who).learned == {NEW_EXPECTED: EXPECTED}
    plan = plans(facts)[EXPECTED]
    assert plan.wanted["n2"].role == "clone"
    assert [peer.node for peer in plan.wanted["n2"].lanes[0].parents] == ["n1"]
    assert plan.wanted["n2"].identity == MINE


def test_what_is_being_seeded_counts_as_held_under_what_its_engine_asked_for() -> None:
    seeding = arena("seeding", way="seed", identity=None, digest=None, sealed_at=None)
    first = asked("p1", OTHER, "seeding", arena=ARENA)
    facts = world(
        [pod("p1", "n1"), pod("p2", "n2")],
        [agent("n1", arenas=[seeding], pods=[first]), agent("n2", pods=[asked("p2", problem=MISMATCH)])],
    )
    assert key_of("p1", facts, owner(**LOADS)) == EXPECTED
    assert key_of("p2", facts, owner(**LOADS)) == OWN


def test_on_a_mismatch_the_policy_decides() -> None:
    assert key_of("p2", mismatched()) == EXPECTED
    assert key_of("p2", mismatched(), owner(**LOADS)) == OWN


def test_a_template_that_shares_the_arenas_of_an_older_one_is_held_to_them() -> None:
    """Nothing is held under the new template's own identity, but it was learned what its pods ask for."""
    first = asked("p1", OTHER, "attached", arena=ARENA)
    pods = [pod("p1", "n1", hash=NEW_HASH), pod("p2", "n2", at=1, hash=NEW_HASH)]
    facts = world(pods, [resident("n1", OTHER, first), agent("n2", pods=[asked("p2", at=1, problem=MISMATCH)])])
    assert key_of("p2", facts) == EXPECTED
    assert plans(facts)[EXPECTED].wanted["n2"].refused == [uid("p2")]
    assert key_of("p2", facts, owner(**LOADS)) == digest_of({"expected": NEW_EXPECTED, "identity": MINE})


def test_nothing_is_loaded_before_the_agent_has_told_what_differs() -> None:
    other = Problem(reason="CloneFailed", message="n1 does not answer")
    for said in (None, other):
        assert key_of("p2", mismatched(said), owner(**LOADS)) == EXPECTED
        assert plans(mismatched(said), owner(**LOADS))[EXPECTED].wanted["n2"].refused == []


def test_with_load_from_checkpoint_it_seeds_a_set_of_its_own_and_nobody_elses_changes() -> None:
    found = plans(mismatched(), owner(**LOADS))
    assert set(found) == {EXPECTED, OWN}
    own = found[OWN]
    assert own.seed is not None
    assert own.seed.name == "p2"
    assert own.wanted["n2"].role == "seed"
    assert own.wanted["n2"].arena == arena_id(OWNER_UID, OWN, Place()) != ARENA
    assert found[EXPECTED].source is not None
    assert set(found[EXPECTED].wanted) == {"n1"}


def test_with_fail_it_is_refused_by_name_and_nothing_is_loaded() -> None:
    found = plans(mismatched())
    assert set(found) == {EXPECTED}
    wanted = found[EXPECTED].wanted
    assert wanted["n2"].refused == [uid("p2")]
    assert wanted["n1"].refused == []
    assert not any(each.role == "seed" for each in wanted.values())


def test_an_attached_pod_stays_where_it_is_attached() -> None:
    there = asked("p2", MINE, "attached", arena=arena_id(OWNER_UID, OWN, Place()))
    facts = world(
        [pod("p2", "n2")],
        [resident("n1", MINE), resident("n2", MINE, there, key=OWN)],
    )
    assert key_of("p2", facts) == OWN


def test_an_attached_pod_of_which_no_identity_is_known_stays_too() -> None:
    """An agent that was upgraded knows none of engines that attached before."""
    known = seen("p1", "attached")
    known = known.model_copy(update={"ranks": [known.ranks[0].model_copy(update={"arena": ARENA})]})
    facts = world(
        [pod("p1", "n1"), pod("p2", "n2", at=1)],
        [resident("n1", OTHER, known), resident("n2", MINE, asked("p2"), key=OWN)],
    )
    assert (key_of("p1", facts), key_of("p2", facts)) == (EXPECTED, OWN)


def test_an_identity_of_another_object_does_not_count() -> None:
    foreign = resident("n1", MINE, model_replica_uid="bbbbbbbb-0000-0000-0000-000000000000")
    facts = world([pod("p2", "n2", hash=NEW_HASH)], [foreign, agent("n2", pods=[asked("p2")])])
    assert key_of("p2", facts) == NEW_EXPECTED


# Learning -------------------------------------------------------------------------------------------------------


def test_later_pods_like_it_clone_what_was_learned() -> None:
    """No further clone is wasted: p3 has not asked, and p2 has shown what pods like it ask for."""
    own = resident("n2", MINE, asked("p2", MINE, "attached", arena=arena_id(OWNER_UID, OWN, Place())), key=OWN)
    pods = [pod("p1", "n1"), pod("p2", "n2", at=1), pod("p3", "n3", at=2)]
    facts = world(pods, [resident("n1", OTHER, seen("p1", "attached")), own, agent("n3", pods=[seen("p3")])])
    for who in (owner(), owner(**LOADS)):
        assert key_of("p3", facts, who) == OWN
        assert kinds(facts, who).learned == {EXPECTED: OWN}
    assert plans(facts)[OWN].wanted["n3"].role == "clone"


def test_the_newest_word_counts_but_that_of_the_same_node_more() -> None:
    old = asked("p1", OTHER, "attached", at=1, arena=ARENA)
    new = asked("p2", MINE, "attached", at=2, arena=arena_id(OWNER_UID, OWN, Place()))
    agents = [
        resident("n1", OTHER, old, seen("p4")),
        resident("n2", MINE, new, key=OWN),
        agent("n3", pods=[seen("p3")]),
    ]
    facts = world([pod("p1", "n1"), pod("p2", "n2"), pod("p3", "n3"), pod("p4", "n1")], agents)
    assert key_of("p3", facts) == OWN
    assert key_of("p4", facts) == EXPECTED


def test_what_was_learned_counts_while_it_is_held() -> None:
    own = resident("n2", MINE, key=OWN)
    facts = world([pod("p3", "n3")], [own, agent("n3", pods=[seen("p3")])])
    assert key_of("p3", facts, learned={EXPECTED: OWN}) == OWN
    empty = world([pod("p3", "n3")], [agent("n3", pods=[seen("p3")])])
    assert key_of("p3", empty, learned={EXPECTED: OWN}) == EXPECTED
    assert kinds(empty, learned={EXPECTED: OWN}).learned == {}


def test_the_learned_set_is_kept_without_pods_and_the_mismatched_one_is_not() -> None:
    facts = world([], [resident("n1", OTHER), resident("n2", MINE, key=OWN)])
    found = plans(facts, memory=Memory(learned={EXPECTED: OWN}))
    assert set(found) == {OWN}
    assert found[OWN].wanted["n2"].role == "hold"
    assert found[OWN].template_hash == HASH


def test_a_new_operator_reads_what_was_learned_from_the_status() -> None:
    facts = world([], [resident("n1", OTHER)])
    identities = [
        {"templateHash": HASH, "gpuProduct": "cpu", "expectedIdentity": OWN, "identity": MINE},
        {"templateHash": HASH, "gpuProduct": "NVIDIA-H200", "expectedIdentity": "sha256:" + "3" * 64},
        {"templateHash": NEW_HASH, "gpuProduct": "cpu", "expectedIdentity": NEW_EXPECTED},
    ]
    assert remembered(owner(), facts, identities) == {EXPECTED: OWN}


# Seeding --------------------------------------------------------------------------------------------------------


def test_a_seed_is_told_only_after_it_asked_when_something_is_held() -> None:
    """A template that changes nothing in the weights must not make one load the checkpoint."""
    changed = [pod("p2", "n2", hash=NEW_HASH)]
    silent = world(changed, [resident("n1", MINE), agent("n2", pods=[seen("p2")])])
    plan = plans(silent)[NEW_EXPECTED]
    assert plan.seed is None
    assert plan.wanted["n2"].role == "clone"
    other = world(changed, [resident("n1", OTHER), agent("n2", pods=[asked("p2")])])
    plan = plans(other)[NEW_EXPECTED]
    assert plan.seed is not None
    assert plan.wanted["n2"].role == "seed"


def test_the_first_seed_is_told_at_once() -> None:
    facts = world([pod("p1", "n1")], [agent("n1", pods=[seen("p1")])])
    assert plans(facts)[EXPECTED].wanted["n1"].role == "seed"


def test_pods_of_old_and_new_template_on_one_set_count_for_the_new_one() -> None:
    pods: list[Pod] = [pod("p1", "n1", hash=NEW_HASH), pod("p2", "n2", at=1)]
    facts = world(pods, [resident("n1", MINE, asked("p1", phase="attached")), agent("n2", pods=[asked("p2")])])
    assert plans(facts)[EXPECTED].template_hash == HASH
    assert len(plans(facts)[EXPECTED].pods) == 2


# Several ranks --------------------------------------------------------------------------------------------------


def refused_of(who: Owner, *, held: tuple[str, str], asks: str) -> dict[str, list[str]]:
    """Rank → who is refused there, of one pod with two ranks that ask, before its agent has told anything."""
    expected = expected_identity(who.spec, template_hash=HASH, gpu_product="cpu", architecture="amd64")
    arenas = [
        arena(
            place={"tp": tp},
            identity=identity,
            expected_identity=expected,
            name=arena_id(OWNER_UID, expected, Place(tp=tp)),
        )
        for tp, identity in enumerate(held)
    ]
    said = seen("p2", tp0="coming", tp1="coming")
    ranks = [rank.model_copy(update={"identity": asks, "hello_at": NOW}) for rank in said.ranks]
    facts = world(
        [pod("p2", "n2")], [agent("n1", arenas=arenas), agent("n2", pods=[said.model_copy(update={"ranks": ranks})])]
    )
    found = plan_replica(who, facts, Memory())
    assert {plan.expected for plan in found} == {expected}
    return {str(plan.place): plan.wanted["n2"].refused for plan in found}


def test_the_first_rank_decides_and_another_that_differs_is_refused() -> None:
    for more in ({}, LOADS):
        found = refused_of(owner(parallelism={"tensor": 2}, **more), held=(MINE, OTHER), asks=MINE)
        assert found == {"tp0": [], "tp1": [uid("p2")]}


def test_no_rank_is_refused_while_its_replica_may_still_load_a_set_of_its_own() -> None:
    """The second rank's engine would end, and the whole replica with it, before the first was told to load."""
    found = refused_of(owner(parallelism={"tensor": 2}, **LOADS), held=(OTHER, OTHER), asks=MINE)
    assert found == {"tp0": [], "tp1": []}
    found = refused_of(owner(parallelism={"tensor": 2}), held=(OTHER, OTHER), asks=MINE)
    assert found == {"tp0": [uid("p2")], "tp1": [uid("p2")]}


def test_until_the_first_rank_asked_the_others_wait() -> None:
    who = owner(parallelism={"tensor": 2})
    said = seen("p2", tp0="published", tp1="coming")
    ranks = [said.ranks[0], said.ranks[1].model_copy(update={"identity": OTHER, "hello_at": NOW})]
    facts = world([pod("p2", "n2")], [agent("n2", pods=[said.model_copy(update={"ranks": ranks})])])
    found = kinds(facts, who)
    assert found.heard == frozenset()
    assert replace(found, learned={}) == found


def test_a_mismatch_that_soon_passes_is_told_when_it_is_seen_and_only_then() -> None:
    facts, who = mismatched(), owner(transfer={"onMismatch": "LoadFromCheckpoint"})
    made = plan_replica(who, facts, Memory())
    (note,) = [n for n in happened(who, facts, made) if n.reason == "IdentityMismatch"]
    assert note.message == f"pod p2: rank tp0 on n2: {MISMATCH.message}"
    assert not [n for n in happened(who, mismatched(None), made) if n.reason == "IdentityMismatch"]
    made = plan_replica(owner(), facts, Memory())
    lasting = compute_status(owner(), facts, made, generation=1, before={}, refused=None)
    assert "IdentityMismatch" in {c.reason for c in lasting.conditions or []}
    assert "IdentityMismatch" not in {n.reason for n in transitions(lasting.conditions or [], [])}
