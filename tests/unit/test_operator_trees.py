"""Who feeds whom, as the operator tells it: what nodes say, what the plan says, and where the two differ."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from flashboot_agent.wire.observed_arena import Accusation, ObservedArena, ObservedLane
from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.changes import edge_changes, elections
from flashboot_operator.core.facts import Agent
from flashboot_operator.core.fanout.pace import Sample
from flashboot_operator.core.plan import ArenaPlan, Memory
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.trees import rate_of, trees_of
from tests.unit.operatorkit import ARENA, NOW, agent, arena, owner, pod, seen, world

MIB = 1 << 20


def filling(parent: str | None, watermark: int, **more: Any) -> ObservedArena:
    lanes = [ObservedLane(watermark=watermark, parent=parent)]
    facts = {"bytes": 8 * MIB, "started_at": NOW - timedelta(seconds=9), "lanes": lanes, "parent": parent}
    return arena("filling", watermark=watermark, **{**facts, **more})


def a_chain() -> tuple[list[Agent], list[ArenaPlan], Any]:
    """n1 holds everything and feeds n2, which feeds n3; n3 has been told so and says another parent yet."""
    told = Problem(reason="ParentUnreachable", message="no answer within 3 s")
    agents = [
        agent("n1", arenas=[arena(bytes=8 * MIB, watermark=8 * MIB)]),
        agent("n2", arenas=[filling("n1", 4 * MIB, transport="tcp", transport_reason="no fabric")], pods=[seen("b")]),
        agent(
            "n3",
            arenas=[filling("n1", MIB, accusations=[Accusation(node="n2", problem=told, at=NOW)])],
            pods=[seen("c")],
            accused=frozenset({(ARENA, "n2")}),
        ),
    ]
    pods = [pod("a", "n1", ready=True), pod("b", "n2"), pod("c", "n3", at=1)]
    there = world(pods, agents)
    return agents, plan_replica(owner(replicas=3), there, Memory()), there


def test_a_member_says_how_far_how_fast_since_when_over_what_and_what_is_wrong() -> None:
    agents, plans, there = a_chain()
    samples = (Sample(10.0, 0, ("n1",), False), Sample(11.0, 2 * MIB, ("n1",), False))
    moving = replace(agents[1], samples={ARENA: samples})
    trees = trees_of(owner(replicas=3), replace(there, agents={**there.agents, "n2": moving}), plans, epoch=3)
    (rank,) = trees.ranks
    assert (rank.rank, rank.sources[0].node, rank.bytes, trees.epoch) == ("tp0", "n1", 8 * MIB, 3)
    n1, n2, n3 = rank.members
    assert (n1.node, n1.state, n1.pods) == ("n1", "source", ["a"])
    assert (n2.state, n2.watermark, n2.bytes_per_second) == ("filling", 4 * MIB, 2 * MIB)
    assert (n2.transport, n2.transport_reason, n2.since) == ("tcp", "no fabric", NOW - timedelta(seconds=9))
    assert n2.notes == ["n3 left it: no answer within 3 s"]
    assert not n2.quarantined
    assert not n3.notes


def test_an_edge_is_what_the_node_says_and_names_the_plan_where_it_differs() -> None:
    _, plans, there = a_chain()
    told = [replace(plans[0], lanes=({"n2": "n1", "n3": "n2"},))]
    (rank,) = trees_of(owner(replicas=3), there, told, epoch=1).ranks
    (lane,) = rank.lanes
    assert lane.bytes == 8 * MIB
    assert (lane.edges["n2"].parent, lane.edges["n2"].planned, lane.edges["n2"].watermark) == ("n1", None, 4 * MIB)
    assert (lane.edges["n3"].parent, lane.edges["n3"].planned) == ("n1", "n2")


def test_a_seed_and_those_who_wait_for_it() -> None:
    pods = [pod("a", "n1"), pod("b", "n2", at=1)]
    there = world(pods, [agent("n1", pods=[seen("a")]), agent("n2", pods=[seen("b")])])
    plans = plan_replica(owner(replicas=2), there, Memory())
    (rank,) = trees_of(owner(replicas=2), there, plans, epoch=1).ranks
    assert (rank.sources, rank.seed_pod, rank.seed_node, rank.bytes, rank.lanes) == ([], "a", "n1", 0, [])
    assert [m.state for m in rank.members] == ["waiting", "waiting"]
    assert trees_of(owner(), there, plans, epoch=1, rank="tp7").ranks == []


def test_a_rate_needs_two_words_of_the_last_seconds() -> None:
    assert rate_of(()) is None
    assert rate_of((Sample(1.0, 5, (), False),)) is None
    old = (Sample(1.0, 0, (), False), Sample(9.0, 100, (), False), Sample(10.0, 300, (), False))
    assert rate_of(old) == 200


def test_changes_between_two_plans_are_counted() -> None:
    before = ({"a": "s", "b": "a", "c": "b"}, {"a": "s"})
    after = ({"a": "s", "b": "s", "d": "b"}, {"a": "s"})
    assert edge_changes(before, after) == {"joined": 1, "moved": 1, "left": 1}
    assert not edge_changes(after, after)
    assert edge_changes((), before) == {"joined": 4}


def test_an_election_counts_when_somebody_else_is_chosen() -> None:
    _, plans, _ = a_chain()
    assert elections([], plans) == {("source", "OnlySealed"): 1}
    assert not elections(plans, plans)
