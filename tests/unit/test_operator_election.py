"""Who feeds whom: one source for each domain, what moves it, what is said of it. Who loads: test_operator_loaders."""

from __future__ import annotations

from typing import Any

from flashboot_agent.wire.observed import ObservedProbe
from flashboot_agent.wire.observed_arena import ObservedLane
from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.domains import domains_of
from flashboot_operator.core.election import Sealed, elect_source, elect_sources
from flashboot_operator.core.events import happened
from flashboot_operator.core.facts import Agent, Node, Pod, Restart, World, believed
from flashboot_operator.core.parsing import node_of
from flashboot_operator.core.plan import ArenaPlan, Memory
from flashboot_operator.core.progress import line_of
from flashboot_operator.core.quarantine import probes_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from tests.unit.operatorkit import ARENA, NOW, agent, arena, owner, pod, seen, uid, world

WEDGED = Problem(reason="Timeout", message="no metadata in 3 s")


def look(there: World, *present: str, **spec: Any) -> ArenaPlan:
    [plan] = plan_replica(owner(**spec), there, Memory(sources={ARENA: present} if present else {}))
    return plan


def said_of(there: World, plan: ArenaPlan) -> list[tuple[str, str | None, str | None]]:
    return [(each.name, each.source_node, each.source_reason) for each in domains_of([plan], there)]


def parents(plan: ArenaPlan, lane: int = 0) -> dict[str, str]:
    return dict(plan.lanes[lane])


def serving(number: int, **more: Any) -> Agent:
    return agent(f"n{number}", pods=[seen(f"p{number}", "attached")], arenas=[arena()], **more)


def idle(number: int, **more: Any) -> Agent:
    return agent(f"n{number}", arenas=[arena()], **more)


def target(number: int) -> Agent:
    return agent(f"n{number}", pods=[seen(f"p{number}")])


def two_racks() -> dict[str, Node]:
    return {f"n{i}": Node(f"n{i}", domain="a" if i < 4 else "b") for i in range(1, 9)}


# The election itself


def test_idle_before_serving_and_the_present_one_stays_while_it_is_sound() -> None:
    nodes = [Sealed("n1", engines=1), Sealed("n2"), Sealed("n3", children=1)]
    assert elect_source(nodes, None) == elect_source(reversed(nodes), "gone")
    assert [elect_source(nodes, now).node for now in (None, "n1", "n3")] == ["n2", "n1", "n3"]  # type: ignore[union-attr]


def test_what_speaks_against_a_source_is_weighed_and_told() -> None:
    faults: list[dict[str, Any]] = [
        {"cordoned": True},
        {"accused": True},
        {"ready": False},
        {"quarantined": True},
        {"fresh": False},
    ]
    nodes = [Sealed(f"n{i}", **fault) for i, fault in enumerate(faults)]
    reasons = []
    while nodes:
        source = elect_source(nodes, nodes[-1].node)
        assert source is not None
        reasons.append(source.reason)
        nodes = [each for each in nodes if each.node != source.node]
    assert reasons == ["SourceDraining", "SourceAccused", "SourceNodeNotReady", "SourceQuarantined", "SourceSilent"]


def test_a_node_whose_pods_go_gives_its_role_to_one_whose_pods_stay() -> None:
    nodes = [Sealed("n1", leaving=True), Sealed("n2", engines=1)]
    assert elect_source(nodes, "n1").node == "n2"  # type: ignore[union-attr]
    assert elect_source(nodes[:1], "n1").reason == "OnlySealed"  # type: ignore[union-attr]


def test_each_domain_has_its_source_and_home_comes_first() -> None:
    nodes = [Sealed("n1", "a", engines=1), Sealed("n2", "a"), Sealed("n4", "b", engines=1), Sealed("n5", "b")]
    assert [(d, s.node) for d, s in elect_sources(nodes, []).items()] == [("a", "n2"), ("b", "n5")]
    assert [(d, s.node) for d, s in elect_sources(nodes, ["n4", "n1"]).items()] == [("b", "n4"), ("a", "n1")]
    assert elect_sources([], ["n1"]) == {}


# What follows from it for the plan


def test_targets_are_fed_by_the_source_of_their_own_domain() -> None:
    agents = [serving(1), serving(4), target(2), target(5)]
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 4, 2, 5)]
    there = world(pods, agents, nodes=two_racks())
    plan = look(there)
    assert parents(plan) == {"n2": "n1", "n5": "n4"}, "nothing crosses"
    assert {plan.wanted[n].role for n in ("n1", "n4")} == {"hold"}, "while it feeds, it stays even without pods"
    assert said_of(there, plan) == [("a", "n1", "OnlySealed"), ("b", "n4", "OnlySealed")]


def test_without_targets_only_home_is_held() -> None:
    plan = look(world([], [idle(1), idle(4)], nodes=two_racks()))
    assert list(plan.wanted) == ["n1"]


def test_into_a_domain_without_a_source_each_lane_crosses_once_and_fans_out_inside() -> None:
    def filling(*lanes: tuple[int, str | None]) -> Any:
        marks = [ObservedLane(watermark=mark, parent=parent) for mark, parent in lanes]
        total = sum(mark for mark, _ in lanes)
        return arena("filling", bytes=2 << 20, watermark=total, lanes=marks, parent=lanes[0][1])

    source = agent("n1", arenas=[arena(bytes=2 << 20, watermark=2 << 20)])
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (4, 5)]
    first = world(pods, [source, target(4), target(5)], nodes=two_racks())
    plan = look(first)
    assert [parents(plan, lane) for lane in (0, 1)] == [{"n4": "n1"}, {"n5": "n1"}], "a lane each, one crossing each"
    assert said_of(first, plan) == [("a", "n1", "OnlySealed"), ("b", None, "FedAcrossDomains")]
    assert domains_of([plan], first)[1].source_message == (
        "no node of the domain holds it; it crosses over once: n4 from n1, n5 from n1"
    )
    busy = [
        agent("n4", pods=[seen("p4")], arenas=[filling((1000, "n1"), (0, None))]),
        agent("n5", pods=[seen("p5")], arenas=[filling((0, None), (1000, "n1"))]),
    ]
    then = look(world(pods, [source, *busy], nodes=two_racks()))
    assert [parents(then, lane) for lane in (0, 1)] == [{"n4": "n1", "n5": "n4"}, {"n4": "n5", "n5": "n1"}]


def test_a_capped_source_of_one_domain_does_not_wait_for_lanes_under_way_in_another() -> None:
    def fast(made: Agent) -> Agent:
        return Agent(made.node, made.observed.model_copy(update={"link_bytes_per_second": 100 << 20}))

    size = 8 << 20
    held = [
        fast(agent(f"n{i}", pods=[seen(f"p{i}", "attached")], arenas=[arena(bytes=size, watermark=size)]))
        for i in (1, 2, 4)
    ]
    agents = [*held, fast(target(3)), fast(target(5))]
    plan = look(world([pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 4, 3, 5)], agents, nodes=two_racks()))
    assert [parents(plan, lane) for lane in (0, 1)] == [{"n3": "n1", "n5": "n4"}, {"n3": "n2", "n5": "n4"}]


def test_a_node_that_is_drained_feeds_nobody_while_another_can() -> None:
    nodes = {"n1": Node("n1", cordoned=True), "n2": Node("n2"), "n3": Node("n3")}
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]
    there = world(pods, [serving(1), serving(2), target(3)], nodes=nodes)
    plan = look(there, "n1")
    assert plan.source is not None
    assert (plan.source.node, plan.source.reason) == ("n2", "ServingAndSealed")
    assert parents(plan) == {"n3": "n2"}
    two = look(
        world(
            [*pods, pod("p4", "n4", at=4)],
            [serving(1), serving(2), target(3), target(4)],
            nodes=nodes | {"n4": Node("n4")},
        )
    )
    assert parents(two) == {"n3": "n2"}, "the second one waits for a moment"


def test_a_node_whose_pods_are_terminating_loses_its_role_and_is_not_held() -> None:
    going, stays = pod("p1", "n1", going=True), pod("p2", "n2", at=1)
    first = agent("n1", pods=[seen("p1", "attached")], arenas=[arena(pods=[uid("p1")])])
    plan = look(world([going, stays], [first, serving(2)]), "n1")
    assert {node: wanted.role for node, wanted in plan.wanted.items()} == {"n2": "hold"}
    alone = look(world([going], [first]), "n1")
    assert list(alone.wanted) == ["n1"], "it is the last one, and replicas are wanted"


def test_the_only_source_is_used_though_it_is_drained_and_everybody_is_told() -> None:
    nodes = {"n1": Node("n1", cordoned=True), "n2": Node("n2")}
    there = world([pod("p1", "n1"), pod("p2", "n2", at=1)], [serving(1), target(2)], nodes=nodes)
    plan = look(there)
    assert parents(plan) == {"n2": "n1"}
    status = compute_status(owner(), there, [plan], generation=1, before={}, refused=None)
    [condition] = [c for c in status.conditions or [] if c.type == "SourceAvailable"]
    assert (condition.status, condition.reason) == ("True", "SourceDraining")
    assert "being drained" in condition.message
    assert ("Warning", "SourceAtRisk") in {(n.kind, n.reason) for n in happened(owner(), there, [plan])}


def test_an_idle_node_feeds_before_one_that_serves() -> None:
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 3)]
    plan = look(world(pods, [serving(1), idle(2), target(3)]), "n1")
    assert parents(plan) == {"n3": "n2"}, "though the one that serves is still the elected source"
    plan = look(world(pods, [serving(1), idle(2), target(3)]))
    assert parents(plan) == {"n3": "n2"}, "it is the elected source, and spared only for others that are idle"


# Plans that live


def chain() -> tuple[list[Pod], list[Agent]]:
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]
    agents = [
        serving(1),
        agent("n2", pods=[seen("p2")], arenas=[arena("filling", watermark=600, parent="n1")]),
        agent("n3", pods=[seen("p3")], arenas=[arena("filling", watermark=500, parent="n2")]),
    ]
    return pods, agents


def test_a_target_whose_pod_is_deleted_is_cut_out_and_its_child_goes_up() -> None:
    pods, agents = chain()
    assert parents(look(world(pods, agents))) == {"n2": "n1", "n3": "n2"}
    going = [pods[0], pod("p2", "n2", at=2, going=True), pods[2]]
    plan = look(world(going, agents))
    assert parents(plan) == {"n3": "n1"}, "from its watermark on"
    assert "n2" not in plan.wanted, "its agent drops what it has"


def test_a_dead_node_is_routed_around_and_a_source_is_never_told_to_stop() -> None:
    pods, agents = chain()
    before = look(world(pods, agents))
    dead = [agents[0], Agent("n2", agents[1].observed, fresh=False, silent_s=4), agents[2]]
    after = look(world(pods, dead))
    assert parents(after) == {"n3": "n1"}
    assert after.wanted["n1"] == before.wanted["n1"]
    assert before.wanted["n1"].role == "hold"


def test_a_late_target_joins_at_the_tail_and_moves_nobody() -> None:
    pods, agents = chain()
    more = look(world([*pods, pod("p4", "n4", at=4)], [*agents, target(4)]))
    assert parents(more) == {"n2": "n1", "n3": "n2", "n4": "n3"}


# Three kinds of silence


def test_a_node_that_went_with_its_kubelet_is_not_believed_and_one_that_only_its_agent_left_is() -> None:
    nodes = {"n1": Node("n1", ready=False), "n2": Node("n2")}
    quiet = {name: Agent(name, idle(int(name[1])).observed, fresh=False, silent_s=20) for name in nodes}
    assert set(believed(quiet, nodes)) == {"n2"}
    assert set(believed({"n1": idle(1)}, nodes)) == {"n1"}, "its agent answers"
    assert believed(quiet, {}) == {}, "the nodes were deleted"
    assert set(believed({"n1": idle(1)}, {})) == {"n1"}


def test_each_silence_has_its_reason() -> None:
    down, gone = Node("n1", ready=False), Node("n1")
    p1 = pod("p1", "n1", ready=True)
    quiet = Agent("n1", serving(1).observed, fresh=False, silent_s=20)

    def reason(node: Node, agents: list[Agent]) -> str | None:
        there = world([p1], agents, nodes={"n1": node}, missing_agents={"n1": 20.0} if not agents[0].fresh else {})
        trouble = line_of(p1, [look(there)], there).trouble
        return trouble.reason if trouble else None

    assert reason(down, [quiet]) == "NodeNotReady"
    assert reason(down, [serving(1)]) == "NodeNotReady"
    assert reason(gone, [quiet]) == "AgentUnavailable"
    assert reason(gone, [serving(1)]) is None


def test_the_agents_own_node_counts_as_a_source_last_when_its_kubelet_is_silent() -> None:
    nodes = {"n1": Node("n1", ready=False), "n2": Node("n2"), "n3": Node("n3")}
    plan = look(world([pod("p3", "n3")], [idle(1), serving(2), target(3)], nodes=nodes), "n1")
    assert parents(plan) == {"n3": "n2"}


def test_an_agent_that_began_anew_with_its_arenas_is_told_once_and_nothing_else_changes() -> None:
    pods, agents = chain()
    restarted = Agent("n1", agents[0].observed, restart=Restart("1" * 8, frozenset({ARENA}), frozenset()))
    there = world(pods, [restarted, *agents[1:]])
    plan = look(there, "n1")
    assert plan.wanted == look(world(pods, agents), "n1").wanted
    notes = [n for n in happened(owner(), there, [plan]) if n.action == "Observe"]
    assert [(n.kind, n.reason) for n in notes] == [("Normal", "AgentRestarted")]
    lost = Agent("n1", agents[0].observed, restart=Restart("1" * 8, frozenset(), frozenset({ARENA})))
    notes = happened(owner(), world(pods, [lost, *agents[1:]]), [plan])
    assert ("Warning", "ArenaLost") in {(n.kind, n.reason) for n in notes}


def test_what_kubernetes_says_of_a_node() -> None:
    def node(status: str = "True", *taints: str, **spec: Any) -> Node:
        return node_of(
            {
                "metadata": {"name": "n"},
                "spec": {**spec, "taints": [{"key": each} for each in taints]},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            }
        )

    assert (node().cordoned, node().ready) == (False, True)
    assert node(unschedulable=True).cordoned
    for taint in ("node.kubernetes.io/out-of-service", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"):
        assert node("True", taint).cordoned, taint
    assert not node("Unknown").ready
    unready = node("False", "node.kubernetes.io/not-ready")
    assert (unready.cordoned, unready.ready) == (False, False)
    assert node_of({"metadata": {"name": "n"}, "spec": {}, "status": {}}).ready, "nobody has said anything yet"


# Quarantine


def probed(name: str, of: str, failures: int, **more: Any) -> Agent:
    word = ObservedProbe(
        arena=ARENA, node=of, at=NOW, failures=failures, problem=WEDGED if failures else None, failing_since=NOW
    )
    made = agent(name, **more)
    return Agent(name, made.observed.model_copy(update={"probes": [word]}))


def test_a_source_that_cannot_be_read_is_quarantined_and_comes_back() -> None:
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 3)]

    def there(failures: int) -> World:
        return world(pods, [serving(1), serving(2), probed("n3", "n1", failures, pods=[seen("p3")])])

    assert look(there(1), "n1").source.node == "n1", "one try may fail by chance"  # type: ignore[union-attr]
    plan = look(there(2), "n1")
    assert plan.source is not None
    assert plan.source.node == "n2"
    assert parents(plan) == {"n3": "n2"}
    [domain] = domains_of([plan], there(2))
    assert domain.source_message is not None
    assert "n1 is quarantined after 2 tries to read from it: no metadata in 3 s" in domain.source_message
    notes = happened(owner(), there(2), [plan])
    assert [n.message for n in notes if n.reason == "SourceQuarantined"] == [
        "rank tp0 on n1 says that it is complete, and a chunk of it could not be read: no metadata in 3 s"
    ]
    assert look(there(0), "n1").source.node == "n1"  # type: ignore[union-attr]


def test_the_only_source_is_used_though_it_is_quarantined() -> None:
    pods = [pod("p1", "n1"), pod("p2", "n2", at=1)]
    plan = look(world(pods, [serving(1), probed("n2", "n1", 5, pods=[seen("p2")])]))
    assert plan.source is not None
    assert plan.source.reason == "SourceQuarantined"
    assert parents(plan) == {"n2": "n1"}


def test_sources_are_tried_by_a_node_of_their_domain_and_suspects_at_once() -> None:
    pods = [pod(f"p{i}", f"n{i}", at=i) for i in (1, 2, 4)]
    agents = [serving(1), serving(2), serving(4)]
    there = world(pods, agents, nodes=two_racks())
    found = probes_of(there, [look(there, "n1", "n4")])
    flat = [(prober, p.peer.node, p.first_after_seconds) for prober, probes in found.items() for p in probes]
    assert ("n2", "n1", 60) in flat
    assert {node for _, node, _ in flat} == {"n1", "n4"}
    angry = Agent("n4", agents[2].observed, accused=frozenset({(ARENA, "n2")}))
    there = world(pods, [*agents[:2], angry], nodes=two_racks())
    found = probes_of(there, [look(there, "n1", "n4")])
    assert ("n1", "n2", 0) in [(q, p.peer.node, p.first_after_seconds) for q, probes in found.items() for p in probes]


def test_who_tried_it_goes_on_and_nobody_tries_itself_or_a_silent_node() -> None:
    agents = [serving(1), serving(2), probed("n3", "n1", 1)]
    there = world([], agents)
    assert "n3" in probes_of(there, [look(there, "n1")])
    silent = [Agent("n1", agents[0].observed, fresh=False), *agents[1:]]
    assert probes_of(world([], silent), [look(world([], silent), "n1")]) == {} or "n1" not in {
        p.peer.node for probes in probes_of(world([], silent), [look(world([], silent), "n1")]).values() for p in probes
    }
    alone = world([], [serving(1)])
    assert probes_of(alone, [look(alone)]) == {}
