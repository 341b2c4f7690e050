"""Replicas of several ranks: seeded as a whole, cloned when all is resident, Ready when every rank is."""

from __future__ import annotations

from typing import Any

import pytest

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.expected import engine_hash, expected_identity
from flashboot_operator.core.facts import Trouble, World
from flashboot_operator.core.plan import ArenaPlan, Memory, Owner, wanted_of
from flashboot_operator.core.progress import line_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from flashboot_operator.core.workload import TemplateRefused, pod_template
from tests.unit.operatorkit import IDENTITY, NOW, OWNER_UID, SIZE, agent, arena, owner, pod, seen, spec, uid, world

TP2: dict[str, Any] = {"parallelism": {"tensor": 2}}
ONE, TWO = Place(tp=0), Place(tp=1)
BAD = Problem(reason="SeedFailed", message="rank 1 ran out of luck")


def name_of(place: Place) -> str:
    made = spec(**TP2)
    assert made.template is not None
    hash_ = engine_hash(made.template["spec"], made.model.revision)
    expected = expected_identity(made, template_hash=hash_, gpu_product="cpu", architecture="amd64")
    return arena_id(OWNER_UID, expected, place)


def rank(place: Place, state: str = "sealed", **facts: Any) -> ObservedArena:
    expected = expected_identity(
        spec(**TP2), template_hash=owner(**TP2).template_hash or "", gpu_product="cpu", architecture="amd64"
    )
    digest = f"xxh3:{place.tp:016x}" if state == "sealed" else None
    known: dict[str, Any] = {"expected_identity": expected, "place": place, "digest": digest, "name": name_of(place)}
    return arena(state, **known | facts)


def asking(name: str, **phases: Any) -> ObservedPod:
    """Its ranks have said which identity they want."""
    made = seen(name, **phases)
    said = {"hello_at": NOW, "identity": IDENTITY}
    return made.model_copy(update={"ranks": [each.model_copy(update=said) for each in made.ranks]})


def plans(world_: World, memory: Memory | None = None, **more: Any) -> list[ArenaPlan]:
    return plan_replica(owner(**TP2 | more), world_, memory or Memory())


def told(world_: World, memory: Memory | None = None) -> dict[str, dict[str, str]]:
    """Node → rank → role, with the seed pod or the first parent."""
    return {
        node: {
            str(
                w.place
            ): f"{w.role} {w.seed_pod or ''}{w.lanes[0].parents[0].node if w.lanes[0].parents else ''}".strip()
            for w in wanted
        }
        for node, wanted in sorted(wanted_of(plans(world_, memory)).items())
    }


PODS = [pod("p1", "n1", at=0), pod("p2", "n2", at=1)]


def test_one_pod_seeds_all_ranks_and_the_other_waits_with_all() -> None:
    there = world(PODS, [agent("n1", pods=[seen("p1")]), agent("n2", pods=[seen("p2")])])
    assert told(there) == {
        "n1": {"tp0": f"seed {uid('p1')}", "tp1": f"seed {uid('p1')}"},
        "n2": {"tp0": "clone", "tp1": "clone"},
    }


def test_nothing_is_cloned_from_half_a_replica_and_its_seed_goes_on() -> None:
    half = agent("n1", pods=[asking("p1", tp0="attached", tp1="seeding")], arenas=[rank(ONE), rank(TWO, "seeding")])
    there = world(PODS, [half, agent("n2", pods=[seen("p2")])])
    assert told(there) == {
        "n1": {"tp0": f"seed {uid('p1')}", "tp1": f"seed {uid('p1')}"},
        "n2": {"tp0": "clone", "tp1": "clone"},
    }
    assert all(plan.source is None for plan in plans(there))


def test_a_rank_that_fails_fails_the_seed_and_another_pod_seeds_all() -> None:
    failed = asking("p1", tp0="published", tp1="published")
    failed = failed.model_copy(update={"ranks": [failed.ranks[0], failed.ranks[1].model_copy(update={"problem": BAD})]})
    other = agent("n2", pods=[asking("p2", tp0="coming", tp1="coming")])
    there = world(PODS, [agent("n1", pods=[failed], arenas=[rank(ONE)]), other])
    memory = Memory(seeds={name_of(ONE): frozenset({uid("p1")}), name_of(TWO): frozenset({uid("p1")})})
    assert told(there, memory) == {
        "n1": {"tp0": "clone", "tp1": "clone"},
        "n2": {"tp0": f"seed {uid('p2')}", "tp1": f"seed {uid('p2')}"},
    }


def test_a_seed_at_work_on_any_rank_is_recognised_after_a_restart() -> None:
    busy = agent("n2", pods=[asking("p2", tp0="connected", tp1="seeding")], arenas=[rank(TWO, "seeding")])
    there = world(PODS, [agent("n1", pods=[seen("p1")]), busy])
    assert told(there)["n2"] == {"tp0": f"seed {uid('p2')}", "tp1": f"seed {uid('p2')}"}


def test_a_whole_replica_feeds_the_others_rank_by_rank_from_one_node() -> None:
    whole = agent("n1", pods=[seen("p1", tp0="attached", tp1="attached")], arenas=[rank(ONE), rank(TWO)])
    # Of the two nodes that hold tp1 the other one is idle; the first rank's source is preferred all the same.
    there = world(PODS, [whole, agent("n2", pods=[seen("p2")], arenas=[rank(TWO)])])
    assert told(there) == {"n1": {"tp0": "hold", "tp1": "hold"}, "n2": {"tp0": "clone n1", "tp1": "clone"}}
    for plan in plans(there):
        digests = {w.digest for w in plan.wanted.values()}
        assert digests == {f"xxh3:{plan.place.tp:016x}"}, "each rank's own"
        assert {w.place for w in plan.wanted.values()} == {plan.place}


def test_without_pods_only_a_whole_replica_is_held() -> None:
    assert told(world([], [agent("n1", arenas=[rank(ONE), rank(TWO)])])) == {"n1": {"tp0": "hold", "tp1": "hold"}}
    assert told(world([], [agent("n1", arenas=[rank(ONE)])])) == {}


def status(world_: World) -> dict[str, Any]:
    made = compute_status(owner(**TP2), world_, plans(world_), generation=1, before={}, refused=None)
    return made.model_dump(by_alias=True, exclude_none=True, mode="json")


def attached(second: str) -> World:
    pods = [pod("p1", "n1", ready=True, ready_at=NOW)]
    arenas = [rank(ONE, transport="tcp"), rank(TWO, transport="tcp")]
    return world(pods, [agent("n1", pods=[seen("p1", tp0="attached", tp1=second)], arenas=arenas)])


def test_a_replica_is_ready_when_all_of_its_ranks_are_attached() -> None:
    waiting = status(attached("connected"))
    assert waiting["readyReplicas"] == 0
    [ready] = [c for c in waiting["conditions"] if c["type"] == "Ready"]
    assert "pod p1: rank tp1 on n1 has all bytes" in ready["message"]
    done = status(attached("attached"))
    assert done["readyReplicas"] == 1
    assert [(i["rank"], i["arenaBytes"]) for i in done["identities"]] == [("tp0", SIZE), ("tp1", SIZE)]
    assert (done["lastClone"]["replicas"], done["lastClone"]["bytes"]) == (1, 2 * SIZE)
    assert done["domains"][0]["residentReplicas"] == 1
    other = rank(TWO, digest="xxh3:" + "f" * 16)
    changed = world(list(attached("attached").pods), [agent("n1", arenas=[rank(ONE), other])])
    assert status(changed)["weights"]["digest"] != done["weights"]["digest"], "of the bytes of all ranks"


def test_a_trouble_names_its_rank_and_a_line_the_rank_that_is_least_far() -> None:
    filling = [rank(ONE), rank(TWO, "filling", watermark=610, parent="n9")]
    sick = seen("p1", tp0="attached", tp1="coming")
    ranks = [sick.ranks[0], sick.ranks[1].model_copy(update={"problem": BAD})]
    holder = agent("n9", arenas=[rank(ONE), rank(TWO)])
    there = world([PODS[0]], [agent("n1", pods=[sick.model_copy(update={"ranks": ranks})], arenas=filling), holder])
    line = line_of(PODS[0], plans(there), there)
    assert (line.stage, line.text) == ("Cloning", "pod p1: rank tp1 on n1 at 61 % from n9")
    assert line.trouble == Trouble("SeedFailed", "pod p1: rank tp1 on n1: rank 1 ran out of luck")
    early = world([PODS[0]], [agent("n1", pods=[seen("p1")]), holder])
    text = "pod p1: rank tp0 on n1 starts to clone from n9; 2 of its 2 ranks have no weights yet"
    assert line_of(PODS[0], plans(early), early).text == text


def test_ranks_that_the_spec_does_not_have_are_a_trouble() -> None:
    odd = seen("p1", tp0="connected", tp2="connected")
    odd = odd.model_copy(update={"ranks": [each.model_copy(update={"hello_at": NOW}) for each in odd.ranks]})
    there = world([PODS[0]], [agent("n1", pods=[odd])])
    trouble = line_of(PODS[0], plans(there), there).trouble
    assert trouble is not None
    assert trouble.reason == "RanksDiffer"
    assert "its engine has rank tp2, expected are ranks tp0, tp1" in trouble.message


@pytest.mark.parametrize("args", [["--tp-size", "4"], ["--tp=4"], ["--tensor-parallel-size", "4"], ["--pp", "2"]])
def test_arguments_that_contradict_the_spec_are_refused(args: list[str]) -> None:
    template = {"spec": {"containers": [{"name": "engine", "args": ["serve", *args]}]}}
    with pytest.raises(TemplateRefused, match=r"spec\.parallelism\.(tensor is 2|pipeline is 1)"):
        pod_template("m", spec(**TP2, template=template))


def test_arguments_that_agree_are_taken() -> None:
    template = {"spec": {"containers": [{"name": "engine", "args": ["serve", "--tp", "2", "--pp-size=1"]}]}}
    assert pod_template("m", spec(**TP2, template=template))


# A replica of several pods.


def of_two_pods() -> Owner:
    return owner(parallelism={"tensor": 4}, group={"size": 2})


def groups(*, published: bool = True) -> World:
    """Two replicas; the second pod of the first one may be late."""
    pods = [
        pod(f"{name}{index}", f"n{name}{index}", at=number, replica=name, index=index)
        for number, (name, index) in enumerate([("a", 0), ("a", 1), ("b", 0), ("b", 1)])
    ]
    late = () if published else ("a1",)
    return world(pods, [agent(p.node or "", pods=[] if p.name in late else [seen(p.name)]) for p in pods])


def test_each_pod_of_a_replica_is_told_its_own_ranks() -> None:
    decided = plan_replica(of_two_pods(), groups(), Memory())
    assert [str(plan.place) for plan in decided] == ["tp0", "tp1", "tp2", "tp3"]
    seeds = {str(plan.place): plan.seed.name for plan in decided if plan.seed}
    assert seeds == {"tp0": "a0", "tp1": "a0", "tp2": "a1", "tp3": "a1"}
    ranks = {node: [str(w.place) for w in wanted] for node, wanted in sorted(wanted_of(decided).items())}
    assert ranks == {f"n{name}{i}": ["tp0", "tp1"] if i == 0 else ["tp2", "tp3"] for name in "ab" for i in (0, 1)}
    assert len({plan.arena for plan in decided}) == 4


def test_a_replica_that_is_not_all_there_does_not_seed() -> None:
    decided = plan_replica(of_two_pods(), groups(published=False), Memory())
    assert {plan.seed.name for plan in decided if plan.seed} == {"b0", "b1"}
