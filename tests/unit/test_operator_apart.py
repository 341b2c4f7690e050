"""Domains that load for themselves, and what is left of a seed that ended half-way: nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.observed_arena import ObservedArena, ObservedImage
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.place import Place
from flashboot_operator.core.domains import domains_of
from flashboot_operator.core.events import happened
from flashboot_operator.core.facts import Agent, Node, Pod, Trouble, World
from flashboot_operator.core.leftover import leftovers
from flashboot_operator.core.plan import ArenaPlan, Memory, seeds_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from tests.unit.operatorkit import ARENA, DIGEST, IDENTITY, NOW, OWNER_UID, agent, arena, owner, pod, seen, uid, world

STRICT: dict[str, Any] = {"transfer": {"domainPolicy": "RequireSame"}}
CRASH = Trouble("EngineCrashing", "it ended")
OTHER = "sha256:" + "f" * 64
RACKS = {f"n{i}": Node(f"n{i}", domain="a" if i < 4 else "b") for i in range(1, 9)}


def serving(number: int, **more: Any) -> Agent:
    return agent(f"n{number}", pods=[seen(f"p{number}", "attached")], arenas=[arena(**more)])


def target(number: int) -> Agent:
    return agent(f"n{number}", pods=[seen(f"p{number}")])


def with_image(of: Agent) -> Agent:
    image = ObservedImage(arena=ARENA, identity=IDENTITY, digest=DIGEST, bytes=1)
    return replace(of, observed=of.observed.model_copy(update={"images": [image]}))


def there(*agents: Agent) -> World:
    with_pods = [a for a in agents if a.observed.pods]
    pods = [pod(a.observed.pods[0].name, a.node, at=number) for number, a in enumerate(with_pods)]
    return world(pods, list(agents), nodes=RACKS)


def look(world_: World, memory: Memory | None = None, **spec: Any) -> ArenaPlan:
    [plan] = plan_replica(owner(**(spec or STRICT)), world_, memory or Memory())
    return plan


def roles(plan: ArenaPlan) -> dict[str, str]:
    return {node: wanted.role for node, wanted in sorted(plan.wanted.items())}


# Domains that may not be fed by others


def test_a_domain_that_nobody_may_feed_seeds_once_for_itself_and_says_so() -> None:
    world_ = there(serving(1), target(2), target(4), target(5))
    plan = look(world_)
    assert roles(plan) == {"n1": "hold", "n2": "clone", "n4": "seed", "n5": "clone"}
    assert plan.wanted["n4"].seed_pod == uid("p4")
    assert plan.lanes[0] == {"n2": "n1"}, "nothing crosses"
    said = {each.name: each for each in domains_of([plan], world_)}
    assert (said["a"].source_reason, said["b"].source_reason) == ("OnlySealed", "Seeding")
    assert "RequireSame" in str(said["b"].source_message)
    assert "pod p4 on n4 loads it" in str(said["b"].source_message)
    status = compute_status(owner(**STRICT), world_, [plan], generation=1, before={}, refused=None)
    ready = next(c for c in status.conditions or [] if c.type == "Ready")
    assert ready.reason == "Seeding"
    assert "p5: rank tp0 on n5 waits for the seed, pod p4 on n4" in ready.message
    notes = [n.message for n in happened(owner(**STRICT), world_, [plan]) if n.reason == "SeedElected"]
    assert notes == [
        "pod p4 on n4 loads the checkpoint: no node of domain b holds an arena of its identity, and "
        "transfer.domainPolicy is RequireSame"
    ]
    assert look(there(serving(1), target(4)), transfer={"domainPolicy": "PreferSame"}).apart == {}


def test_the_choice_stays_and_moves_on_when_it_failed() -> None:
    world_ = there(serving(1), target(4), target(5))
    memory = Memory(seeds={ARENA: frozenset({uid("p5")})})
    plan = look(world_, memory)
    assert seeds_of([plan]) == {ARENA: {uid("p5")}}
    late = replace(world_, pods=tuple(replace(p, trouble=CRASH) if p.name == "p5" else p for p in world_.pods))
    assert seeds_of([look(late, memory)]) == {ARENA: {uid("p4")}}


def test_an_image_of_the_domain_comes_first_and_one_of_another_domain_does_not_count() -> None:
    near = look(there(serving(1), target(4), with_image(agent("n5"))))
    assert roles(near) == {"n1": "hold", "n4": "clone", "n5": "load"}
    assert near.within("b").image_on == "n5"
    far = look(there(serving(1), target(4), with_image(agent("n2"))))
    assert roles(far) == {"n1": "hold", "n4": "seed"}


def test_where_nobody_holds_it_each_domain_begins_at_once() -> None:
    plan = look(there(target(1), target(2), target(4), target(5)))
    assert roles(plan) == {"n1": "seed", "n2": "clone", "n4": "seed", "n5": "clone"}
    assert seeds_of([plan]) == {ARENA: {uid("p1"), uid("p4")}}


def test_an_image_in_a_domain_without_pods_is_left_where_it_is() -> None:
    assert roles(look(there(target(1), with_image(agent("n5"))))) == {"n1": "seed"}
    both = look(there(target(1), target(4), with_image(agent("n5"))))
    assert roles(both) == {"n1": "seed", "n4": "clone", "n5": "load"}


def test_what_a_domain_loaded_for_itself_feeds_it_though_its_bytes_differ_from_those_of_home() -> None:
    world_ = there(serving(1), serving(4, digest=OTHER), target(2), target(5))
    plan = look(world_)
    assert plan.lanes[0] == {"n2": "n1", "n5": "n4"}
    assert (plan.wanted["n2"].digest, plan.wanted["n5"].digest) == (DIGEST, OTHER)
    assert [plan.wanted[n].digest for n in ("n1", "n4")] == [DIGEST, OTHER]
    loose = look(world_, transfer={"domainPolicy": "PreferSame"})
    assert loose.wanted["n5"].digest == DIGEST, "elsewhere home's bytes are everybody's"


# Groups


TWO: dict[str, Any] = {"group": {"size": 2}, "parallelism": {"tensor": 2}}
TP0, TP1 = Place(tp=0), Place(tp=1)


def member(replica: str, index: int, node: str, **more: Any) -> Pod:
    return pod(f"{replica}-{index}", node, replica=replica, index=index, **more)


def expected_of_two() -> str:
    [plan, _] = plan_replica(
        owner(**TWO), world([member("m-0", 0, "n1")], [agent("n1", pods=[seen("m-0-0")])]), Memory()
    )
    return plan.expected


KEY = expected_of_two()


def rank(place: Place, state: str = "sealed", **more: Any) -> ObservedArena:
    made = {"name": arena_id(OWNER_UID, KEY, place), "place": place, "expected_identity": KEY, "way": "seed"}
    return arena(state, **{**made, **more})


def said(name: str, place: Place, phase: str = "published", **more: Any) -> ObservedPod:
    made = seen(name)
    [only] = made.ranks
    facts = {"place": place, "phase": phase, "arena": arena_id(OWNER_UID, KEY, place), **more}
    return made.model_copy(update={"ranks": [only.model_copy(update=facts)]})


def orders(pods: list[Pod], agents: list[Agent], **more: Any) -> list[dict[str, str]]:
    return [roles(plan) for plan in plan_replica(owner(**TWO), world(pods, agents), more.get("memory", Memory()))]


def test_what_a_seed_left_that_ended_half_way_goes_before_another_begins() -> None:
    """m-0 sealed its first rank on n1, and lost its second pod; both were made anew, on the same nodes."""
    pods = [member("m-0", 0, "n1"), member("m-0", 1, "n2")]
    left = [agent("n1", arenas=[rank(TP0)], pods=[said("m-0-0", TP0)]), agent("n2", pods=[said("m-0-1", TP1)])]
    assert leftovers(owner(**TWO), world(pods, left)) == {("n1", rank(TP0).arena)}
    assert orders(pods, left) == [{}, {"n2": "seed"}], "n1 is told nothing, and drops it"
    clean = [agent("n1", pods=[said("m-0-0", TP0)]), left[1]]
    assert orders(pods, clean) == [{"n1": "seed"}, {"n2": "seed"}]


@pytest.mark.parametrize(
    "engine",
    [{"phase": "seeding"}, {"phase": "attached", "attached_at": NOW}, {"phase": "published", "attached_at": NOW}],
    ids=["writes", "has it", "began anew in its pod, or its agent did"],
)
def test_what_an_engine_has_is_no_leftover(engine: dict[str, Any]) -> None:
    pods = [member("m-0", 0, "n1"), member("m-0", 1, "n2")]
    first = agent("n1", arenas=[rank(TP0)], pods=[said("m-0-0", TP0, **engine)])
    second = agent("n2", arenas=[rank(TP1, "seeding")], pods=[said("m-0-1", TP1, "seeding")])
    assert orders(pods, [first, second]) == [{"n1": "seed"}, {"n2": "seed"}]


def test_nor_is_what_is_complete_or_comes_from_an_image() -> None:
    both = world([], [agent("n1", arenas=[rank(TP0)]), agent("n2", arenas=[rank(TP1)])])
    assert leftovers(owner(**TWO), both) == frozenset()
    loaded = world([], [agent("n1", arenas=[rank(TP0, way="load")])])
    assert leftovers(owner(**TWO), loaded) == frozenset()


def test_a_leftover_of_another_identity_refuses_nobody() -> None:
    """The next engine asks for other weights (a tag moved, say). Nothing can be cloned, so it may load."""
    pods = [member("m-0", 0, "n1"), member("m-0", 1, "n2")]
    hello: dict[str, Any] = {"phase": "connected", "identity": OTHER, "hello_at": NOW}
    agents = [
        agent("n1", pods=[said("m-0-0", TP0, **hello)]),
        agent("n2", pods=[said("m-0-1", TP1)]),
        agent("n3", arenas=[rank(TP0)]),
    ]
    plans = plan_replica(owner(**TWO), world(pods, agents), Memory())
    assert [roles(plan) for plan in plans] == [{"n1": "seed"}, {"n2": "seed"}]
    assert [plan.wanted[n].refused for plan, n in zip(plans, ("n1", "n2"), strict=True)] == [[], []]


def test_a_group_in_a_domain_that_nobody_may_feed_loads_as_a_whole() -> None:
    pods = [member("m-0", 0, "n1"), member("m-0", 1, "n2"), member("m-1", 0, "n4", at=1), member("m-1", 1, "n5", at=1)]
    agents = [
        agent("n1", arenas=[rank(TP0)], pods=[said("m-0-0", TP0, "attached", attached_at=NOW)]),
        agent("n2", arenas=[rank(TP1)], pods=[said("m-0-1", TP1, "attached", attached_at=NOW)]),
        agent("n4", pods=[said("m-1-0", TP0)]),
        agent("n5", pods=[said("m-1-1", TP1)]),
    ]
    made = owner(**TWO, **STRICT)
    plans = plan_replica(made, world(pods, agents, nodes=RACKS), Memory())
    assert [roles(plan) for plan in plans] == [{"n1": "hold", "n4": "seed"}, {"n2": "hold", "n5": "seed"}]
    assert plans[0].wanted["n4"].seed_pod == uid("m-1-0")
