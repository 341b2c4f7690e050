"""Which replicas should go first when there are too many."""

from __future__ import annotations

from collections.abc import Sequence

from flashboot_operator.api.modelreplica import Group, Spec
from flashboot_operator.core.cost_of_loss import ALONE, FEEDS, LEAVING, ORDINARY, cheapest_first, standings
from flashboot_operator.core.facts import Agent, Node, Pod, World
from flashboot_operator.core.plan import Memory, Owner
from flashboot_operator.core.replica import plan_replica
from tests.unit.operatorkit import agent, arena, owner, pod, seen, uid, world


def served(number: int) -> Agent:
    return agent(f"n{number}", pods=[seen(f"p{number}", "attached")], arenas=[arena()])


def costs(there: World, owner_: Owner | None = None) -> dict[str, int]:
    who = owner_ or owner()
    found = standings(who, there, plan_replica(who, there, Memory()))
    return {each.pods[0].name: each.cost for each in found}


def order(there: World) -> list[str]:
    found = standings(owner(), there, plan_replica(owner(), there, Memory()))
    return [each.pods[0].name for each in cheapest_first(found)]


def ready(count: int) -> Sequence[Pod]:
    return [pod(f"p{i}", f"n{i}", at=i, ready=True) for i in range(1, count + 1)]


def test_the_source_goes_last_and_among_equals_the_youngest_first() -> None:
    there = world(list(ready(3)), [served(1), served(2), served(3)])
    assert costs(there) == {"p1": FEEDS, "p2": ORDINARY, "p3": ORDINARY}
    assert order(there) == ["p3", "p2", "p1"]


def test_who_is_not_ready_goes_first_whatever_it_holds() -> None:
    pods = [pod("p1", "n1", at=1), *list(ready(3))[1:]]
    assert order(world(pods, [served(1), served(2), served(3)]))[0] == "p1"


def test_the_only_holder_of_its_domain_goes_last() -> None:
    nodes = {"n1": Node("n1", domain="a"), "n2": Node("n2", domain="a"), "n3": Node("n3", domain="b")}
    there = world(list(ready(3)), [served(1), served(2), served(3)], nodes=nodes)
    assert costs(there)["p3"] == ALONE
    assert order(there)[-1] == "p3"


def test_while_the_first_clone_runs_its_source_is_alone() -> None:
    filling = agent("n2", pods=[seen("p2")], arenas=[arena("filling", watermark=10, parent="n1")])
    there = world([*ready(1), pod("p2", "n2", at=2)], [served(1), filling])
    assert costs(there) == {"p1": ALONE, "p2": ORDINARY}
    assert order(there) == ["p2", "p1"]


def test_what_a_silent_or_drained_node_holds_does_not_count() -> None:
    silent = agent("n2", arenas=[arena()], fresh=False)
    assert costs(world(list(ready(2)), [served(1), silent]))["p1"] == ALONE
    nodes = {"n1": Node("n1"), "n2": Node("n2", cordoned=True)}
    assert costs(world(list(ready(2)), [served(1), served(2)], nodes=nodes)) == {"p1": ALONE, "p2": LEAVING}


def test_of_two_pods_that_share_an_arena_one_may_go() -> None:
    both = agent("n1", pods=[seen("p1", "attached"), seen("p2", "attached")], arenas=[arena()])
    pods = [pod("p1", "n1", at=1, ready=True), pod("p2", "n1", at=2, ready=True)]
    assert ALONE not in costs(world(pods, [both])).values()


def test_a_group_counts_as_one_and_is_ready_when_it_is_whole() -> None:
    one = owner()
    pair = Spec.model_construct(**dict(one.spec) | {"group": Group.model_construct(size=2)})
    group = Owner(one.namespace, one.name, one.uid, pair, one.template_hash)
    pods = [
        pod("g0-0", "n1", at=1, ready=True, replica="g0"),
        pod("g0-1", "n2", at=2, ready=True, replica="g0", index=1),
        pod("g1-0", "n3", at=3, ready=True, replica="g1"),
    ]
    found = standings(group, world(pods, []), [])
    assert [(each.name, each.ready, len(each.pods)) for each in found] == [("g0", True, 2), ("g1", False, 1)]
    assert [each.name for each in cheapest_first(found)] == ["g1", "g0"]
    assert uid("g0-0") in {each.uid for each in found[0].pods}
