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


async def test_the_last_copy_moves_off_a_drained_node_before_its_pod_goes(rig: Rig) -> None:
    a, b = [await rig.node(n) for n in (1, 2)]
    await create(rig)
    pod = await seeded(rig, a)
    await cordon(rig, a)
    await sealed(b)
    assert b.pods == {}, "no pod asked for it"

    async def moved() -> bool:
        events = [reason for reason, _ in await rig.events("m")]
        return await source(rig) == b.node and "CopyAhead" in events

    await eventually("the copy is the source", moved)
    await rig.delete_pod(pod)

    async def dropped() -> bool:
        return not a.arenas and a.wanted() is None and bool(b.arenas)

    await eventually("the drained node holds nothing, the other one does", dropped)
    again = await rig.pod("m", b)
    await rig.set_ready(again)

    async def attached() -> bool:
        return [p.phase for p in b.pods.values()] == ["attached"]

    await eventually("the next pod has it at once", attached)
    assert [reason for reason, _ in await rig.events("m")].count("SeedSealed") == 1


async def test_a_domain_that_nobody_may_feed_loads_for_itself(rig: Rig) -> None:
    a, b = [await rig.node(n) for n in (1, 2)]
    for number, agent in enumerate((a, b)):
        await rig.merge(
            f"/api/v1/nodes/{agent.node}", {"metadata": {"labels": {"nvidia.com/gpu.clique": f"rack.{number}"}}}
        )
    await create(rig, replicas=2, transfer={"domainPolicy": "RequireSame"})
    await seeded(rig, a)
    b.seed_seals = False
    pod = await rig.pod("m", b)

    async def explained() -> bool:
        domain = {d["name"]: d for d in (await rig.status("m"))["domains"]}["rack.1"]
        assert domain["sourceReason"] == "Seeding", domain
        return "RequireSame" in domain["sourceMessage"] and pod["metadata"]["name"] in domain["sourceMessage"]

    await eventually("the status says who loads there, and why", explained)
    b.seed_seals = True
    await b.publish("0" * 36, rig.namespace, "wakes-it-up", "m")
    await sealed(b)
    assert b.only().way == "seed"  # type: ignore[union-attr]
    assert a.only().bytes_out == 0  # type: ignore[union-attr]


CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/modelreplicas.flashboot.io"
LONGEST = 604800
"""Of spec.residency.hostTTLSeconds."""


async def allow(rig: Rig, seconds: int) -> None:
    """Let the API server take so long a time, as a newer CRD might."""
    crd = await rig.call("GET", CRD)
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["residency"]["properties"]["hostTTLSeconds"]["maximum"] = seconds
    await rig.merge(CRD, {"spec": crd["spec"]})


async def test_an_operator_that_starts_with_a_spec_that_it_cannot_read_drops_no_copy(rig: Rig) -> None:
    a, _ = [await rig.node(n) for n in (1, 2)]
    await create(rig, residency={"hostCopies": 1, "hostTTLSeconds": 600})
    pod = await seeded(rig, a)
    await rig.merge(rig.path("m"), {"spec": {"replicas": 0}})
    await rig.delete_pod(pod)

    def later(seconds: int) -> Any:
        return rig.merge(rig.path("m"), {"spec": {"residency": {"hostTTLSeconds": seconds}}})

    async def refused() -> bool:
        return (await rig.condition("m", "Stalled")).get("reason") == "SpecNotUnderstood" and len(a.puts) > before

    async def well() -> bool:
        return (await rig.condition("m", "Ready")).get("reason") == "ScaledToZero"

    await eventually("a copy is kept", well)
    rig.operator.kill()
    before = len(a.puts)
    await allow(rig, 2 * LONGEST)
    try:
        await eventually("the API server takes what the operator does not know", lambda: later(LONGEST + 1))
        rig.operator.start()
        await rig.operator.ready()
        await eventually("it says so, and has told the node what it wants", refused)
        assert [arena.state for arena in a.arenas.values()] == ["sealed"]
        assert a.wanted().role == "hold"  # type: ignore[union-attr]
        await later(600)
    finally:
        await allow(rig, LONGEST)
    await eventually("it is put right", well)
    assert [arena.state for arena in a.arenas.values()] == ["sealed"], "the copy is there still"
