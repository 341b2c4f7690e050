"""What each node is told, for the situations that matter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.facts import Node
from flashboot_operator.core.plan import Memory, Owner
from flashboot_operator.core.replica import plan_replica
from tests.unit.operatorkit import ARENA, DIGEST, NOW, TEMPLATE, agent, arena, owner, pod, seen, uid, world

NOTHING = Memory()


def wanted(*args: Any) -> dict[str, WantedArena]:
    owner_, world_, *memory = args
    plans = plan_replica(owner_, world_, memory[0] if memory else NOTHING)
    return {node: w for plan in plans for node, w in plan.wanted.items()}


def roles(result: dict[str, WantedArena]) -> dict[str, str]:
    return {node: w.role for node, w in sorted(result.items())}


def test_nothing_is_resident_one_pod_seeds_and_the_others_wait() -> None:
    pods = [pod("p1", "n1", at=1), pod("p2", "n2", at=0), pod("p3", "n3", at=2)]
    told = wanted(owner(), world(pods, [agent(f"n{i}", pods=[seen(f"p{i}")]) for i in (1, 2, 3)]))
    assert roles(told) == {"n1": "clone", "n2": "seed", "n3": "clone"}, "the oldest seeds"
    assert told["n2"].seed_pod == uid("p2")
    assert all(not w.lanes[0].parents for w in told.values())


def test_a_pod_whose_volume_is_not_published_cannot_seed() -> None:
    pods = [pod("p1", "n1", at=1), pod("p2", "n2", at=0)]
    told = wanted(owner(), world(pods, [agent("n1", pods=[seen("p1")]), agent("n2")]))
    assert roles(told) == {"n1": "seed", "n2": "clone"}


def test_the_present_seed_stays_until_it_fails_and_then_another_tries() -> None:
    pods = [pod("p1", "n1", at=1), pod("p2", "n2", at=0)]
    healthy = [agent("n1", pods=[seen("p1")]), agent("n2", pods=[seen("p2")])]
    memory = Memory(seeds={ARENA: frozenset({uid("p1")})})
    assert roles(wanted(owner(), world(pods, healthy), memory)) == {"n1": "seed", "n2": "clone"}
    problem = Problem(reason="CheckpointMissing", message="gone")
    failed = [agent("n1", pods=[seen("p1", problem=problem)]), agent("n2", pods=[seen("p2")])]
    assert roles(wanted(owner(), world(pods, failed), memory)) == {"n1": "clone", "n2": "seed"}
    both = [agent(f"n{i}", pods=[seen(f"p{i}", problem=problem)]) for i in (1, 2)]
    assert roles(wanted(owner(), world(pods, both), memory)) == {"n1": "seed", "n2": "clone"}, (
        "all failed: it goes on trying"
    )


def test_a_seed_at_work_is_recognised_after_a_restart() -> None:
    pods = [pod("p1", "n1", at=1), pod("p2", "n2", at=0)]
    agents = [agent("n1", pods=[seen("p1", "seeding")], arenas=[arena("seeding")]), agent("n2", pods=[seen("p2")])]
    assert roles(wanted(owner(), world(pods, agents))) == {"n1": "seed", "n2": "clone"}


def test_a_sealed_arena_is_held_and_feeds_a_chain() -> None:
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]
    agents = [
        agent("n1", pods=[seen("p1", "attached")], arenas=[arena(way="seed")]),
        agent("n2", pods=[seen("p2")], arenas=[arena("filling", watermark=300, parent="n1")]),
        agent("n3", pods=[seen("p3")]),
    ]
    told = wanted(owner(), world(pods, agents))
    assert roles(told) == {"n1": "hold", "n2": "clone", "n3": "clone"}
    assert [p.node for p in told["n2"].lanes[0].parents] == ["n1"]
    assert [p.node for p in told["n3"].lanes[0].parents] == ["n2", "n1"], "below the other, the source as a last resort"
    assert {w.digest for w in told.values()} == {DIGEST}


def test_only_one_sealed_arena_is_held_and_only_while_replicas_are_wanted() -> None:
    agents = [agent("n1", arenas=[arena()]), agent("n2", arenas=[arena()])]
    assert roles(wanted(owner(), world([], agents))) == {"n1": "hold"}
    assert roles(wanted(owner(), world([], agents), Memory(sources={ARENA: ("n2",)}))) == {"n2": "hold"}, (
        "the present one stays"
    )
    assert wanted(owner(replicas=0), world([], agents)) == {}


def test_nothing_is_wanted_of_an_object_that_is_being_deleted() -> None:
    here = owner()
    going = Owner(here.namespace, here.name, here.uid, here.spec, here.template_hash, going=True)
    assert wanted(going, world([pod("p1", "n1")], [agent("n1", pods=[seen("p1")], arenas=[arena()])])) == {}


def test_an_arena_of_an_old_template_is_held_only_while_pods_use_it() -> None:
    changed = {"spec": {"containers": [{"name": "engine", "image": "sglang:y", "args": ["--port", "31000"]}]}}
    new = owner(template=changed)
    told = wanted(new, world([pod("p1", "n1")], [agent("n1", pods=[seen("p1", "attached")], arenas=[arena()])]))
    assert roles(told) == {"n1": "hold"}
    assert wanted(new, world([], [agent("n1", arenas=[arena()])])) == {}


def test_adopted_pods_get_an_arena_too() -> None:
    adopting = owner(replicas=None, template=None)
    told = wanted(adopting, world([pod("p1", "n1")], [agent("n1", pods=[seen("p1")])]))
    assert roles(told) == {"n1": "seed"}
    assert roles(wanted(adopting, world([], [agent("n1", arenas=[arena()])]))) == {"n1": "hold"}


def test_a_silent_source_does_not_make_anybody_seed() -> None:
    agents = [agent("n1", arenas=[arena()], fresh=False, silent_s=8), agent("n2", pods=[seen("p2")])]
    told = wanted(owner(), world([pod("p2", "n2")], agents))
    assert roles(told) == {"n1": "hold", "n2": "clone"}
    assert told["n2"].lanes[0].parents == [], "nobody answers yet whom it could pull from"


def test_a_silent_source_gives_way_to_one_that_answers() -> None:
    agents = [agent("n1", arenas=[arena()], fresh=False, silent_s=8), agent("n2", arenas=[arena()])]
    assert roles(wanted(owner(), world([], agents), Memory(sources={ARENA: ("n1",)}))) == {"n2": "hold"}


def test_a_cordoned_source_gives_way() -> None:
    agents = [agent("n1", arenas=[arena()]), agent("n2", arenas=[arena()])]
    nodes = {"n1": Node("n1", cordoned=True), "n2": Node("n2")}
    assert roles(wanted(owner(), world([], agents, nodes=nodes), Memory(sources={ARENA: ("n1",)}))) == {"n2": "hold"}


def test_a_live_parent_is_kept_though_another_would_be_chosen_now() -> None:
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]
    agents = [
        agent("n1", pods=[seen("p1", "attached")], arenas=[arena()]),
        agent("n2", pods=[seen("p2")], arenas=[arena("filling", watermark=900, parent="n1")]),
        agent("n3", pods=[seen("p3")], arenas=[arena("filling", watermark=100, parent="n1")]),
    ]
    told = wanted(owner(), world(pods, agents))
    assert [p.node for p in told["n3"].lanes[0].parents] == ["n1", "n2"], "the other one is what it may fall back to"


def test_an_accused_parent_is_replaced() -> None:
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]
    agents = [
        agent("n1", pods=[seen("p1", "attached")], arenas=[arena()]),
        agent("n2", pods=[seen("p2")], arenas=[arena("filling", watermark=500, parent="n1")]),
        agent(
            "n3",
            pods=[seen("p3")],
            arenas=[arena("filling", watermark=500, parent="n2")],
            accused=frozenset({(ARENA, "n2")}),
        ),
    ]
    told = wanted(owner(), world(pods, agents))
    assert [p.node for p in told["n3"].lanes[0].parents] == ["n1"], "it takes the place of its parent"
    assert [p.node for p in told["n2"].lanes[0].parents] == ["n3", "n1"], "which goes to the tail"


def test_a_node_that_cannot_allocate_does_not_keep_the_slot() -> None:
    problem = Problem(reason="InsufficientMemory", message="no memory")
    blank = arena("allocated", bytes=0, problem=problem)
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]
    agents = [
        agent("n1", pods=[seen("p1", "attached")], arenas=[arena()]),
        agent("n2", pods=[seen("p2")], arenas=[blank]),
        agent("n3", pods=[seen("p3")]),
    ]
    told = wanted(owner(), world(pods, agents))
    assert [p.node for p in told["n3"].lanes[0].parents] == ["n1"]
    assert told["n2"].lanes[0].parents, "it may go on as soon as it can"


def test_a_gpu_and_a_cpu_node_never_share_an_arena() -> None:
    pods = [pod("p1", "n1"), pod("p2", "n2", at=1)]
    nodes = {"n1": Node("n1"), "n2": Node("n2", product="NVIDIA-H200")}
    agents = [agent("n1", pods=[seen("p1", "attached")], arenas=[arena()]), agent("n2", pods=[seen("p2")])]
    told = wanted(owner(), world(pods, agents, nodes=nodes))
    assert told["n1"].arena != told["n2"].arena
    assert roles(told) == {"n1": "hold", "n2": "seed"}


@pytest.mark.parametrize("hours", [-3, 0, 3])
def test_a_node_that_never_allocated_frees_its_slot_whatever_its_clock_says(hours: int) -> None:
    """What counts is for how long it has known a parent, by the operator's own clock."""
    off = timedelta(hours=hours)
    early = seen("p2").model_copy(update={"published_at": NOW - timedelta(seconds=40) + off})
    first = arena(sealed_at=NOW - timedelta(seconds=50) + off)
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]
    later = seen("p3").model_copy(update={"published_at": NOW - timedelta(seconds=10) + off})

    def parents(ordered_s: float) -> dict[str, list[str]]:
        waits = agent("n2", pods=[early], ordered_s={ARENA: ordered_s})
        told = wanted(owner(), world(pods, [agent("n1", arenas=[first]), waits, agent("n3", pods=[later])]))
        return {node: [p.node for p in told[node].lanes[0].parents][:1] for node in ("n2", "n3")}

    assert parents(14.0) == {"n2": ["n1"], "n3": []}, "one child at a time"
    assert parents(16.0)["n3"] == ["n1"]


def test_a_change_of_replicas_changes_no_identity() -> None:
    assert owner(replicas=1).template_hash == owner(replicas=4).template_hash
    other = {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], "env": [{"name": "A", "value": "1"}]}]}}
    assert owner(template=other).template_hash != owner().template_hash
