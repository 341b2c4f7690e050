"""A copy ahead of a drain: when, where to, and that it is one and no more."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.place import Place
from flashboot_operator.core.domains import domains_of
from flashboot_operator.core.events import happened
from flashboot_operator.core.facts import Agent, Node, World
from flashboot_operator.core.plan import ArenaPlan, Memory
from flashboot_operator.core.replica import plan_replica
from tests.samples import MEMORY
from tests.unit.operatorkit import NOW, OWNER_UID, SIZE, agent, arena, owner, pod, seen, uid, world

DRAINED = Node("n1", cordoned=True)
WARM = {"replicas": 0, "residency": {"hostCopies": 1, "hostTTLSeconds": 600}}


def serving(**more: Any) -> Agent:
    return agent("n1", pods=[seen("p1", "attached")], arenas=[arena(pods=[uid("p1")])], **more)


def room(of: Agent, free: int) -> Agent:
    memory = MEMORY.model_copy(update={"used_bytes": MEMORY.budget_bytes - free})
    return replace(of, observed=of.observed.model_copy(update={"memory": memory}))


def drained(*others: Agent, nodes: dict[str, Node] | None = None) -> World:
    """n1 serves and is drained; beside it are these."""
    known = {"n1": DRAINED, **{each.node: Node(each.node) for each in others}, **(nodes or {})}
    return world([pod("p1", "n1")], [serving(), *others], nodes=known)


def plan_of(there: World, **spec: Any) -> ArenaPlan:
    [plan] = plan_replica(owner(**spec), there, Memory())
    return plan


def test_the_only_source_is_drained_so_another_node_clones_it_without_a_pod() -> None:
    there = drained(agent("n2"))
    plan = plan_of(there)
    assert plan.copies == ["n2"]
    order = plan.wanted["n2"]
    assert [peer.node for peer in order.lanes[0].parents] == ["n1"]
    assert (order.pods, order.identity, order.digest) == ([], *_facts(plan))
    [domain] = domains_of([plan], there)
    assert (domain.source_reason, domain.source_node) == ("SourceDraining", "n1")
    assert "n2 clones it ahead" in str(domain.source_message)
    notes = [n.message for n in happened(owner(), there, [plan]) if n.reason == "CopyAhead"]
    assert notes == ["n2 clones rank tp0 ahead: each node that holds it is being drained"]


def _facts(plan: ArenaPlan) -> tuple[str | None, str | None]:
    return plan.sealed["n1"].identity, plan.sealed["n1"].digest


def test_once_it_is_there_it_is_the_source_and_nothing_is_left_behind() -> None:
    there = drained(agent("n2", arenas=[arena()]))
    plan = plan_of(there)
    assert plan.source is not None
    assert (plan.source.node, plan.copies) == ("n2", [])
    assert {node: wanted.role for node, wanted in plan.wanted.items()} == {"n1": "clone", "n2": "hold"}
    assert plan.wanted["n2"].eviction == "never", "what is drained is no copy that one could rely on"
    gone = replace(there, pods=())
    assert list(plan_of(gone).wanted) == ["n2"], "with its pod the drained node drops it"


def test_a_node_whose_pod_needs_it_anyway_is_enough() -> None:
    there = drained(*[agent(f"n{number}") for number in (2, 3, 4, 6)], agent("n5", pods=[seen("p5")]))
    there = replace(there, pods=(*there.pods, pod("p5", "n5", at=1)))
    plan = plan_of(there)
    assert plan.copies == []
    assert plan.lanes[0] == {"n5": "n1"}


@pytest.mark.parametrize("state", ["allocated", "filling"])
def test_one_that_has_begun_goes_on_whoever_comes(state: str) -> None:
    half = agent("n3", arenas=[arena(state, watermark=SIZE // 2 if state == "filling" else 0, parent="n1")])
    there = drained(agent("n2"), half, agent("n4", pods=[seen("p4")]))
    assert plan_of(replace(there, pods=there.pods[:1])).copies == ["n3"]
    there = replace(there, pods=(*there.pods, pod("p4", "n4", at=1)))
    plan = plan_of(there)
    assert plan.copies == ["n3"]
    assert plan.lanes[0]["n4"] in ("n1", "n3")


def test_nothing_is_copied_that_nobody_wants_or_that_stays_elsewhere() -> None:
    there = drained(agent("n2"))
    assert plan_of(there, replicas=0).copies == [], "no replica is wanted, and no warm copy"
    assert plan_of(replace(there, nodes={**there.nodes, "n1": Node("n1")})).copies == []
    assert plan_of(drained(agent("n2"), agent("n3", arenas=[arena()]))).copies == []
    going = replace(there, nodes={**there.nodes, "n1": Node("n1")}, pods=(pod("p1", "n1", going=True),))
    assert (plan_of(going).copies, list(plan_of(going).wanted)) == ([], ["n1"]), "its node holds it without pods"


def test_a_warm_copy_moves_off_a_drained_node_and_is_one_still() -> None:
    there = world([], [agent("n1", arenas=[arena()]), agent("n2")], nodes={"n1": DRAINED, "n2": Node("n2")})
    there = replace(there, unused_since=NOW - timedelta(seconds=5))
    plan = plan_of(there, **WARM)
    assert {node: wanted.role for node, wanted in plan.wanted.items()} == {"n1": "hold", "n2": "copy"}
    moved = replace(there, agents={**there.agents, "n2": agent("n2", arenas=[arena()])})
    assert list(plan_of(moved, **WARM).wanted) == ["n2"]
    late = replace(there, unused_since=NOW - timedelta(seconds=601))
    assert plan_replica(owner(**WARM), late, Memory()) == [], "its time is over"


def test_it_goes_where_it_fits_and_where_a_pod_could_use_it() -> None:
    full, small = room(agent("n2"), SIZE - 1), room(agent("n3"), SIZE)
    assert plan_of(drained(full)).copies == []
    assert plan_of(drained(full, small)).copies == ["n3"]
    other = {"n2": Node("n2", product="other"), "n3": Node("n3", architecture="arm64"), "n4": Node("n4", ready=False)}
    assert plan_of(drained(*map(agent, other), nodes=other)).copies == []
    assert plan_of(drained(agent("n2", fresh=False))).copies == []
    assert plan_of(drained(agent("n2"), nodes={"n2": Node("n2", cordoned=True)})).copies == []


def test_domains() -> None:
    racks = {"n1": replace(DRAINED, domain="a"), "n2": Node("n2", domain="b"), "n3": Node("n3", domain="a")}
    there = drained(agent("n2"), agent("n3"), nodes=racks)
    assert plan_of(there).copies == ["n3"], "the same domain first"
    alone = drained(agent("n2"), nodes={"n1": racks["n1"], "n2": racks["n2"]})
    assert plan_of(alone).copies == ["n2"], "better than nowhere"
    strict = {"transfer": {"domainPolicy": "RequireSame"}}
    assert plan_of(alone, **strict).copies == [], "no byte may cross"
    with_b = drained(agent("n2", arenas=[arena()]), agent("n3"), nodes=racks)
    assert plan_of(with_b).copies == [], "the other domain's source takes its place"
    assert plan_of(with_b, **strict).copies == ["n3"], "which it may not here"


def test_ranks_go_to_one_node_where_it_has_room_for_them() -> None:
    two = {"parallelism": {"tensor": 2}}
    made = owner(**two)
    [first, second] = [Place(tp=0), Place(tp=1)]
    [probe, _] = plan_replica(made, world([pod("p1", "n1")], [agent("n1", pods=[seen("p1")])]), Memory())

    def holding(place: Place) -> Any:
        return arena(name=arena_id(OWNER_UID, probe.expected, place), place=place, expected_identity=probe.expected)

    source = agent("n1", pods=[seen("p1", tp0="attached", tp1="attached")], arenas=[holding(first), holding(second)])

    def targets(*others: Agent) -> list[list[str]]:
        nodes = {"n1": DRAINED, **{each.node: Node(each.node) for each in others}}
        there = world([pod("p1", "n1")], [source, *others], nodes=nodes)
        return [plan.copies for plan in plan_replica(made, there, Memory())]

    [one, other] = targets(agent("n2"), agent("n3"), agent("n4"))
    assert one == other
    assert targets(room(agent("n2"), SIZE)) in ([["n2"], []], [[], ["n2"]]), "what fits is better than nothing"
    assert sorted(targets(room(agent("n2"), SIZE), room(agent("n3"), SIZE))) == [["n2"], ["n3"]]


nodes = st.fixed_dictionaries(
    {
        "cordoned": st.booleans(),
        "ready": st.booleans(),
        "fresh": st.booleans(),
        "domain": st.sampled_from("ab"),
        "state": st.sampled_from([None, None, "sealed", "sealed", "filling", "allocated"]),
        "pod": st.booleans(),
        "free": st.sampled_from([0, SIZE, 9 * SIZE]),
    }
)


@settings(deadline=None)
@given(facts=st.lists(nodes, min_size=1, max_size=5), policy=st.sampled_from(["PreferSame", "RequireSame", "Any"]))
def test_whatever_the_cluster_looks_like(facts: list[dict[str, Any]], policy: str) -> None:
    agents, pods, known = [], [], {}
    for number, each in enumerate(facts):
        name = f"n{number}"
        known[name] = Node(name, domain=each["domain"], cordoned=each["cordoned"], ready=each["ready"])
        held = [arena(each["state"], watermark=1)] if each["state"] else []
        here = [seen(f"p{number}")] if each["pod"] else []
        agents.append(room(agent(name, arenas=held, pods=here, fresh=each["fresh"]), each["free"]))
        pods += [pod(f"p{number}", name, at=number)] if each["pod"] else []
    there = world(pods, agents, nodes=known)
    plans = plan_replica(owner(transfer={"domainPolicy": policy}), there, Memory())
    for plan in plans:
        copies, sealed = plan.copies, set(plan.sealed)
        assert not set(copies) & {p.node for p in plan.pods}
        assert not set(copies) & sealed
        for node in copies:
            assert known[node].ready
            assert not known[node].cordoned
            assert there.agents[node].fresh
            assert any(known[n].cordoned and there.agents[n].fresh for n in sealed), "only ahead of a drain"
            reach = [n for n in sealed if policy != "RequireSame" or known[n].domain == known[node].domain]
            staying = [n for n in reach if known[n].ready and not known[n].cordoned and there.agents[n].fresh]
            assert not staying, "nothing is copied of which a copy stays"
        assert len(copies) <= (1 if policy != "RequireSame" else len({known[n].domain for n in copies}))
    assert plan_replica(owner(transfer={"domainPolicy": policy}), there, Memory()) == plans
