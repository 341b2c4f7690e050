"""Drains, silent nodes, restarts and scale-downs, on a real API server with agents that speak the real protocol."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from flashboot_operator.core.cost_of_loss import ALONE, FEEDS, LEAVING
from flashboot_operator.core.facts import ANNOTATION_DELETION_COST
from tests.component.controlplane.fakeagents import FakeAgent
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_operator import create, sealed, seeded

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]


async def costs(rig: Rig) -> dict[str, int]:
    """Pod → what its annotation says; those without one are left out."""
    pods = (await rig.call("GET", f"/api/v1/namespaces/{rig.namespace}/pods"))["items"]
    found = {p["metadata"]["name"]: (p["metadata"].get("annotations") or {}) for p in pods}
    return {name: int(a[ANNOTATION_DELETION_COST]) for name, a in found.items() if ANNOTATION_DELETION_COST in a}


async def source(rig: Rig) -> str:
    return str((await rig.status("m"))["domains"][0].get("sourceNode"))


async def cordon(rig: Rig, agent: FakeAgent, *, off: bool = False) -> None:
    await rig.merge(f"/api/v1/nodes/{agent.node}", {"spec": {"unschedulable": not off}})


async def test_a_drain_takes_the_role_of_the_source_away_and_costs_say_what_goes_first(rig: Rig) -> None:
    a, b, c = [await rig.node(n) for n in (1, 2, 3)]
    await create(rig, replicas=2)
    pods = [await seeded(rig, a), await rig.pod("m", b)]
    names = [pod["metadata"]["name"] for pod in pods]
    await sealed(b)
    await rig.set_ready(pods[1])

    async def told(expected: dict[str, int]) -> bool:
        found = await costs(rig)
        assert found == expected, found
        return True

    await eventually("the source's pod goes last", lambda: told({names[0]: FEEDS}))
    await cordon(rig, a)

    async def moved() -> bool:
        return await source(rig) == b.node

    await eventually("the other node is the source", moved)
    await eventually("and the drained pod goes first", lambda: told({names[0]: LEAVING, names[1]: ALONE}))
    await rig.merge(rig.path("m", "scale"), {"spec": {"replicas": 3}})
    await rig.pod("m", c)
    await sealed(c)
    assert c.only().parent == b.node  # type: ignore[union-attr]
    await rig.delete_pod(pods[0])

    async def dropped() -> bool:
        return not a.arenas and a.wanted() is None

    await eventually("nothing is held on the drained node", dropped)
    assert [arena.way for agent in (b, c) for arena in agent.arenas.values()] == ["clone", "clone"]
    await cordon(rig, b)
    await cordon(rig, c)

    async def warned() -> bool:
        condition = await rig.condition("m", "SourceAvailable")
        events = await rig.events("m")
        return condition["reason"] == "SourceDraining" and "SourceAtRisk" in [reason for reason, _ in events]

    await eventually("there is no other node: it is said", warned)


async def test_a_node_that_is_down_an_agent_that_is_away_and_one_that_began_anew_are_told_apart(rig: Rig) -> None:
    a, b = await rig.node(1), await rig.node(2)
    await create(rig, replicas=2)
    pods = [await seeded(rig, a), await rig.pod("m", b)]
    await sealed(b)
    await rig.set_ready(pods[1])
    made = {agent.node: agent.only().created_at for agent in (a, b)}  # type: ignore[union-attr]

    async def reason(kind: str, expected: str) -> bool:
        condition = await rig.condition("m", kind)
        assert condition["reason"] == expected, condition
        return True

    await eventually("all is well", lambda: reason("Ready", "AllReplicasReady"))

    # The agent's process begins anew, and holds what it held.
    await a.stop()
    a.instance = str(uuid.uuid4())
    await a.start()

    async def event(reason: str) -> bool:
        return reason in [found for found, _ in await rig.events("m")]

    await eventually("the restart is told", lambda: event("AgentRestarted"))
    assert await source(rig) == a.node, "it is the source still"

    # Its node goes: the kubelet is silent, and the agent with it.
    await a.stop()
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    await rig.merge(f"/api/v1/nodes/{a.node}/status", {"status": {"conditions": [ready]}})
    await eventually("the node is named", lambda: reason("Degraded", "NodeNotReady"))

    async def moved() -> bool:
        return await source(rig) == b.node

    await eventually("the other node is the source", moved)

    async def residents(count: int) -> bool:
        return bool((await rig.status("m"))["domains"][0]["residentReplicas"] == count)

    await eventually("what a node held that is down does not count", lambda: residents(1))

    # It comes back; then only the agent of the other one is away, and its word counts.
    await rig.merge(f"/api/v1/nodes/{a.node}/status", {"status": {"conditions": [{**ready, "status": "True"}]}})
    await a.start()
    await eventually("all is well again", lambda: reason("Degraded", "AsExpected"))
    await b.stop()
    await eventually("the agent is named", lambda: reason("Degraded", "AgentUnavailable"), 25)
    assert await residents(2), "it holds its arena most likely still"
    assert (await rig.status("m"))["readyReplicas"] == 2, "who serves goes on serving"
    await b.start()
    await eventually("all is well at last", lambda: reason("Degraded", "AsExpected"))
    assert {agent.node: agent.only().created_at for agent in (a, b)} == made  # type: ignore[union-attr]
    reasons = [found for found, _ in await rig.events("m")]
    assert (reasons.count("SeedSealed"), reasons.count("CloneSealed")) == (1, 1), "nothing was made again"
