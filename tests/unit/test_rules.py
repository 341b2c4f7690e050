"""The node's decisions, as a table and as properties."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.node.rules import Held, answer, arenas_of, clones, keeps, loads, unallocated
from flashboot_agent.node.steps import STEPS, require_step
from flashboot_agent.wire.arena import ArenaState, Peer
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import Desired, Lane, Role, WantedArena
from flashboot_agent.wire.door import PublishedPod
from flashboot_agent.wire.place import Place
from tests.images import manifest_for

A, B = "arena-" + "a" * 32, "arena-" + "b" * 32
POD, OTHER = "11111111-aaaa", "22222222-bbbb"
STATES: tuple[ArenaState, ...] = get_args(ArenaState)
ROLES: tuple[Role, ...] = get_args(Role)


def wants(role: Role, arena: str = A, **facts: object) -> WantedArena:
    base = {
        "namespace": "serving",
        "model_replica": "tiny",
        "model_replica_uid": "33333333-cccc",
        "expected_identity": "sha256:" + "0" * 64,
    }
    return WantedArena.model_validate({**base, "arena": arena, "role": role, **facts})


def desired(*arenas: WantedArena) -> Desired:
    return Desired(epoch=1, revision=1, node="n1", arenas=list(arenas))


def pod(uid: str = POD, model_replica: str | None = "tiny", namespace: str = "serving") -> PublishedPod:
    return PublishedPod(
        uid=uid,
        namespace=namespace,
        name="p",
        service_account="s",
        model_replica=model_replica,
        published_at=now(),
    )


def test_a_rank_belongs_to_the_arena_that_lists_its_pod_else_to_the_only_one_of_its_model_replica() -> None:
    listed, other = wants("clone", A, pods=[POD]), wants("clone", B)
    assert arenas_of(pod(), None) == {}
    assert arenas_of(pod(), desired(other, listed)) == {Place(): listed}
    assert arenas_of(pod(OTHER), desired(listed)) == {Place(): listed}
    assert arenas_of(pod(OTHER), desired(other, listed)) == {}, "two: no guess"
    assert arenas_of(pod(OTHER, None), desired(listed)) == {}
    assert arenas_of(pod(OTHER, namespace="elsewhere"), desired(listed)) == {}


def test_a_pod_that_two_claim_gets_none_whatever_its_volume_says() -> None:
    barring = desired(wants("clone", A, pods=[POD])).model_copy(update={"barred": [POD, OTHER]})
    assert arenas_of(pod(), barring) == {}
    assert arenas_of(pod(OTHER), barring) == {}
    assert b"barred" not in desired().to_json(), "an agent that does not know it is told nothing of it"


def test_a_copy_ahead_of_a_drain_needs_no_pod() -> None:
    copy = wants("copy", lanes=[Lane(parents=[Peer(node="n2", address="10.0.0.2:9441")])])
    assert [clones(copy, state, used=False) for state in (None, "allocated", "filling")] == [True] * 3
    assert not clones(copy, "sealed", used=False)
    for state in ("allocated", "filling", "sealed"):
        held = Held(state, attached=False, used=False)
        assert keeps(A, held, desired(copy), fresh=True)
        assert not keeps(A, held, desired(copy), fresh=False), "the operator alone wants it"
    assert not loads(copy, None, IMAGE, used=False, begun=False)


def test_each_rank_of_a_pod_has_an_arena_of_its_own() -> None:
    places = [Place(tp=0), Place(tp=1), Place(pp=1, tp=0)]
    ranks = [wants("clone", f"arena-{i:032x}", pods=[POD], place=place) for i, place in enumerate(places)]
    assert arenas_of(pod(), desired(*ranks)) == dict(zip(places, ranks, strict=True))
    assert arenas_of(pod(OTHER), desired(*ranks)) == dict(zip(places, ranks, strict=True))
    twice = wants("clone", A, place=Place(tp=1))
    assert arenas_of(pod(OTHER), desired(*ranks, twice)).keys() == {places[0], places[2]}, "two of tp1: no guess"


def test_memory_may_be_measured_once_all_ranks_that_do_not_seed_have_theirs() -> None:
    one, two = Place(tp=0), Place(tp=1)
    cloned = {one: wants("clone", A, place=one), two: wants("clone", B, place=two)}
    assert unallocated(POD, cloned, []) == [one, two]
    assert unallocated(POD, cloned, [A]) == [two]
    assert unallocated(POD, cloned, [A, B]) == []
    seeds = {place: wants("seed", each.arena, place=place, seed_pod=POD) for place, each in cloned.items()}
    assert unallocated(POD, seeds, []) == [], "there is none yet, and it is not counted as preloaded"
    assert unallocated(OTHER, seeds, []) == [one, two], "it waits for the seed's"


def test_half_a_seed_goes_though_its_pod_had_it() -> None:
    seed = desired(wants("seed", seed_pod=POD))
    assert keeps(A, Held("sealed", True, True), seed, fresh=True)
    assert not keeps(A, Held("sealed", True, True, half=True), seed, fresh=True)
    assert keeps(A, Held("sealed", True, True, read=True, half=True), seed, fresh=True), "a child reads it"


@given(
    held=st.builds(Held, st.sampled_from(STATES), st.booleans(), st.booleans(), st.booleans()),
    role=st.sampled_from([*ROLES, None]),
    fresh=st.booleans(),
)
def test_an_arena_lives_while_a_pod_uses_it_a_child_reads_it_or_a_fresh_state_lists_it(
    held: Held, role: Role | None, fresh: bool
) -> None:
    kept = keeps(A, held, desired(wants(role)) if role else desired(), fresh=fresh)
    if held.attached:
        assert kept, "an engine has it"
    elif held.state == "updating":
        assert kept, "it is a version again soon"
    elif held.read and held.state == "sealed":
        assert kept, "a source does not go from under a child"
    elif role is None:
        assert not kept, "nobody wants it"
    elif held.state == "sealed":
        assert kept == (fresh or held.used), "resident: kept under every role"
    elif held.state == "seeding":
        assert not kept, "its engine is gone"
    else:
        assert kept == (role in ("clone", "copy") and (fresh or held.used))


def test_a_clone_runs_for_a_published_pod_and_goes_on_once_it_has_begun() -> None:
    assert clones(wants("clone"), None, used=True)
    assert not clones(wants("clone"), None, used=False)
    assert clones(wants("clone"), "filling", used=False)
    for role in ("seed", "hold"):
        assert not clones(wants(role), None, used=True)
    for state in ("sealed", "updating", "seeding"):
        assert not clones(wants("clone"), state, used=True)


IMAGE = manifest_for(5, "xxh3:" + "0" * 16, A)
PARENT = [Lane(), Lane(parents=[Peer(node="n2", address="1.2.3.4:9441")])]


@pytest.mark.parametrize(
    ("wanted", "state", "facts", "expected"),
    [
        (wants("seed", seed_pod=POD), None, {}, True),
        (wants("clone"), None, {}, True),
        (wants("clone", identity=IMAGE.identity, digest=IMAGE.digest), None, {}, True),
        (wants("clone"), None, {"image": None}, False),
        (wants("clone"), None, {"used": False}, False),
        (wants("clone"), None, {"whole": False}, False),
        (wants("clone"), "filling", {"whole": False, "begun": True}, True),
        (wants("load"), None, {"used": False}, True),
        (wants("load", lanes=PARENT), None, {"used": False}, False),
        (wants("hold"), None, {}, False),
        (wants("hold"), "filling", {"begun": True}, False),
        (wants("clone", lanes=PARENT), None, {}, False),
        (wants("clone", lanes=PARENT), "filling", {"begun": True}, True),
        (wants("seed", seed_pod=POD), "filling", {"begun": True, "used": False}, True),
        (wants("clone"), "filling", {}, False),
        (wants("clone", identity="sha256:" + "1" * 64), None, {}, False),
        (wants("clone", digest="xxh3:" + "1" * 16), "filling", {"begun": True}, False),
        (wants("clone", layout_digest=IMAGE.layout_digest), None, {}, True),
        (wants("clone", layout_digest="sha256:" + "1" * 64), None, {}, False),
        (wants("clone", layout_digest="sha256:" + "1" * 64), "filling", {"begun": True}, False),
        (wants("seed", seed_pod=POD), "seeding", {}, False),
        (wants("seed", seed_pod=POD), "sealed", {"begun": True}, False),
    ],
)
def test_an_image_is_loaded_where_it_is_what_is_wanted_and_no_parent_is(
    wanted: WantedArena, state: ArenaState | None, facts: dict[str, Any], expected: bool
) -> None:
    assert loads(wanted, state, **{"image": IMAGE, "used": True, "begun": False, **facts}) == expected


def test_what_is_loaded_is_kept_and_its_seed_waits() -> None:
    seed = wants("seed", seed_pod=POD)
    for state in ("allocated", "filling"):
        assert keeps(A, Held(state, False, True, loading=True), desired(seed), fresh=True)
        assert not keeps(A, Held(state, False, True), desired(seed), fresh=True)
    assert answer(POD, seed, None, loads=True) == ("coming", "the arena is loaded from its image on this node")
    assert answer(POD, seed, "sealed", loads=True)[0] == "ready"


def test_a_rank_of_which_two_processes_ask_is_seeded_by_one() -> None:
    seed = wants("seed", seed_pod=POD)
    assert answer(POD, seed, None)[0] == "seed"
    assert answer(POD, seed, None, taken=True) == ("coming", "another engine process of this pod loads the checkpoint")
    assert answer(POD, seed, "sealed", taken=True)[0] == "ready"


@pytest.mark.parametrize(
    ("wanted", "state", "expected", "note"),
    [
        (None, None, "coming", "not named an arena"),
        (wants("clone"), None, "coming", "waits for a parent"),
        (wants("clone", lanes=[Lane(parents=[Peer(node="n2", address="1.2.3.4:9441")])]), None, "coming", "begins"),
        (wants("clone"), "filling", "coming", "under way"),
        (wants("hold"), None, "coming", "hold"),
        (wants("seed", seed_pod=POD), None, "seed", ""),
        (wants("seed", seed_pod=OTHER), None, "coming", OTHER),
        (wants("seed", seed_pod=POD), "seeding", "coming", POD),
        (wants("clone"), "updating", "coming", f"{A} is brought to another version"),
        *[(wants(role), "sealed", "ready", "") for role in ROLES],
    ],
)
def test_what_a_plug_in_is_told(wanted: WantedArena | None, state: ArenaState | None, expected: str, note: str) -> None:
    got, says = answer(POD, wanted, state)
    assert got == expected
    assert note in says


def test_the_only_steps_are_those_of_the_diagram() -> None:
    allowed = {(old, new) for old, news in STEPS.items() for new in news}
    assert allowed == {
        ("allocated", "filling"),
        ("allocated", "seeding"),
        ("filling", "sealed"),
        ("seeding", "sealed"),
        ("sealed", "updating"),
        ("updating", "sealed"),
    }
    for old in STATES:
        for new in STATES:
            if (old, new) in allowed:
                require_step(A, old, new)
            else:
                with pytest.raises(ValueError, match=f"can't go from {old} to {new}"):
                    require_step(A, old, new)
