"""`kubectl describe` alone explains any state: each message names whom it is about, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.conditions import unknown
from flashboot_operator.core.facts import Node, Trouble, World
from flashboot_operator.core.plan import Memory, Owner
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from tests.unit.operatorkit import NOW, agent, arena, owner, pod, seen, world

Conditions = dict[str, tuple[str, str, str]]


def say(facts: World, who: Owner | None = None, refused: Trouble | None = None) -> Conditions:
    who = who or owner(replicas=2)
    status = compute_status(who, facts, plan_replica(who, facts, Memory()), generation=1, before={}, refused=refused)
    return {c.type: (c.status, c.reason, c.message) for c in status.conditions or []}


def first_seen() -> Conditions:
    return {c.type: (c.status, c.reason, c.message) for c in unknown(1, NOW)}


def serving(extra_pod: str = "", node: str = "n2", **more: Any) -> World:
    """m-1 serves on n1; m-2 is wherever the facts say."""
    pods = [pod("m-1", "n1", ready=True, ready_at=NOW), pod("m-2", node or None, at=5, **more)]
    nodes = {"n1": Node("n1"), "n2": Node("n2")}
    agents = [agent("n1", pods=[seen("m-1", "attached")], arenas=[arena()])]
    return world(pods, agents, nodes=nodes)


def with_agent(*arenas: Any, phase: str = "published", known: bool = True, problem: Problem | None = None) -> World:
    facts = serving()
    second = agent("n2", pods=[seen("m-2", phase, problem)] if known else [], arenas=list(arenas))
    return replace(facts, agents={**facts.agents, "n2": second})


def seeding() -> World:
    pods = [pod("m-1", "n1"), pod("m-2", "n2", at=5)]
    agents = [agent("n1", pods=[seen("m-1", "seeding")], arenas=[arena("seeding", way="seed")])]
    return world(pods, [*agents, agent("n2", pods=[seen("m-2")])])


def all_serve(count: int = 2) -> World:
    pods = [pod(f"m-{i}", f"n{i}", ready=True, ready_at=NOW) for i in range(count)]
    return world(pods, [agent(f"n{i}", pods=[seen(f"m-{i}", "attached")], arenas=[arena()]) for i in range(count)])


def going() -> Owner:
    return replace(owner(replicas=2), going=True)


@dataclass(frozen=True)
class State:
    facts: Callable[[], Conditions]
    condition: str
    reason: str
    message: str
    """Whole."""


STATES = [
    State(
        first_seen,
        "Ready",
        "FirstSeen",
        "the operator has not looked at this object yet; if that lasts, look at the flashboot-operator pod and its log",
    ),
    State(lambda: say(serving(node="")), "Ready", "WaitingForNodes", "pod m-2 is not bound to a node yet"),
    State(
        lambda: say(with_agent(known=False)),
        "Ready",
        "WaitingForVolumes",
        "pod m-2: rank tp0 on n2 waits for its volume; if that lasts, look at the flashboot-door pod there",
    ),
    State(
        lambda: say(serving()),
        "Ready",
        "AgentSilent",
        "pod m-2: rank tp0 on n2 waits: the agent of the node does not answer",
    ),
    State(lambda: say(seeding()), "Ready", "Seeding", ""),
    State(
        lambda: say(with_agent(arena("filling", watermark=610, parent="n1"))),
        "Ready",
        "Cloning",
        "pod m-2: rank tp0 on n2 at 61 % from n1",
    ),
    State(
        lambda: say(with_agent(arena("filling", watermark=610, way="load"))),
        "Ready",
        "LoadingImage",
        "pod m-2: rank tp0 on n2 loads from the image on this node, at 61 %",
    ),
    State(
        lambda: say(with_agent(arena())),
        "Ready",
        "Attaching",
        "pod m-2: rank tp0 on n2 has all bytes, its engine has not attached yet",
    ),
    State(
        lambda: say(with_agent(arena(), phase="attached")),
        "Ready",
        "EngineStarting",
        "pod m-2: rank tp0 on n2 has its weights, its engine is not Ready yet; kubectl logs m-2 says what it does",
    ),
    State(lambda: say(all_serve()), "Ready", "AllReplicasReady", "2 of 2 replicas are ready"),
    State(
        lambda: say(all_serve()),
        "SourceAvailable",
        "ServingAndSealed",
        "what n0 holds feeds new replicas",
    ),
    State(
        lambda: say(all_serve(), owner(replicas=3)),
        "Reconciling",
        "Progressing",
        "2 of 3 replicas are ready",
    ),
    State(
        lambda: say(all_serve(1), owner(replicas=4)),
        "Available",
        "TooFewReplicasReady",
        "1 of 4 replicas are ready; 4 are needed",
    ),
    State(
        lambda: say(all_serve(), owner(replicas=2, model={"name": "org/m", "revision": "r2"})),
        "Ready",
        "RollingOut",
        "2 of 2 replicas are ready; roll-out: 0 of 2 are of the present template; the others are being replaced",
    ),
    State(lambda: say(world([], []), owner(replicas=0)), "Ready", "ScaledToZero", "no replicas are wanted"),
    State(
        lambda: say(world([], []), owner(replicas=None, template=None)),
        "Ready",
        "NoPods",
        "no pod carries the label flashboot.io/model-replica: m yet; without spec.template FlashBoot serves "
        "the pods of another workload, whose template needs the label",
    ),
    State(
        lambda: say(all_serve(), going()),
        "Ready",
        "Deleting",
        "the ModelReplica is being deleted; its pods and arenas go with it",
    ),
    State(
        lambda: say(with_agent(problem=Problem(reason="CloneFailed", message="n1 is away; it is tried again"))),
        "Degraded",
        "CloneFailed",
        "pod m-2: rank tp0 on n2: n1 is away; it is tried again",
    ),
    State(
        lambda: say(world([], []), refused=Trouble("NameTaken", "Deployment m belongs to somebody: rename it")),
        "Stalled",
        "NameTaken",
        "Deployment m belongs to somebody: rename it",
    ),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"{state.condition}-{state.reason}")
def test_a_state_is_explained(state: State) -> None:
    _, reason, message = state.facts()[state.condition]
    assert reason == state.reason, message
    if state.message:
        assert message == state.message


def test_a_seed_and_who_waits_for_it_are_named() -> None:
    _, _, message = say(seeding())["Ready"]
    assert message == (
        "pod m-1: rank tp0 on n1 loads the checkpoint as the seed into an arena of 1000 bytes; "
        "pod m-2: rank tp0 on n2 waits for the seed, pod m-1 on n1"
    )
