"""The operator as a process, between a real API server and agents that speak the real protocol."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from flashboot_agent.wire.problem import Problem
from tests.component.controlplane.fakeagents import BYTES, DIGEST, FakeAgent
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_crd import model_replica

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]


async def create(rig: Rig, **spec: Any) -> Object:
    got: Object = await rig.call("POST", rig.path(""), model_replica(**spec))
    await eventually("the Deployment is applied", lambda: rig.deployment("m"))
    return got


async def sealed(agent: FakeAgent) -> None:
    async def check() -> bool:
        arena = agent.only()
        assert arena is not None, "no arena"
        assert arena.state == "sealed", arena.state
        return True

    await eventually(f"{agent.node} has a sealed arena", check)


async def seeded(rig: Rig, agent: FakeAgent) -> Object:
    """A first replica, all the way to Ready, and known as the source."""

    async def known() -> bool:
        return (await rig.condition("m", "SourceAvailable")).get("status") == "True"

    pod = await rig.pod("m", agent)
    await sealed(agent)
    await rig.set_ready(pod)
    await eventually("the operator knows that it is complete", known)
    return pod


async def test_one_line_through_everything(rig: Rig) -> None:
    a, b, c, d = [await rig.node(n) for n in (1, 2, 3, 4)]
    made = await create(rig)
    deployment = await rig.deployment("m")
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    assert deployment["spec"]["selector"] == {"matchLabels": {"flashboot.io/model-replica": "m"}}

    first = await seeded(rig, a)

    async def ready(count: int) -> Object:
        status = await rig.status("m")
        condition = await rig.condition("m", "Ready")
        assert (condition["status"], condition["reason"]) == ("True", "AllReplicasReady"), condition
        assert status["readyReplicas"] == count
        return status

    status = await eventually("one replica is Ready", lambda: ready(1))
    assert status["selector"] == "flashboot.io/model-replica=m,flashboot.io/leader=true"
    assert status["domains"] == [
        {
            "name": "default",
            "residentReplicas": 1,
            "source": first["metadata"]["name"],
            "sourceNode": a.node,
            "sourceReason": "OnlySealed",
            "sourceMessage": f"{a.node}: the only node of the domain that holds it",
        }
    ]
    assert status["weights"] == {"version": 0, "digest": DIGEST}

    generation = deployment["metadata"]["generation"]
    await rig.merge(rig.path("m", "scale"), {"spec": {"replicas": 4}})

    async def scaled() -> bool:
        return bool((await rig.deployment("m"))["spec"]["replicas"] == 4)

    await eventually("the Deployment is scaled", scaled)
    after = await rig.deployment("m")
    assert after["spec"]["template"] == deployment["spec"]["template"], "scaling must not touch the template"
    assert after["metadata"]["generation"] == generation + 1

    pods = [await rig.pod("m", agent) for agent in (b, c, d)]
    for agent in (b, c, d):
        await sealed(agent)
    parents = {agent.node: agent.only().parent for agent in (b, c, d)}  # type: ignore[union-attr]
    assert list(parents.values()).count(a.node) == 1, f"the source feeds one child, the others each other: {parents}"
    for pod in pods:
        await rig.set_ready(pod)
    status = await eventually("all four are Ready", lambda: ready(4))
    assert (status["lastClone"]["replicas"], status["lastClone"]["path"], status["lastClone"]["bytes"]) == (
        3,
        "tcp",
        BYTES,
    )

    async def told() -> bool:
        reasons = [reason for reason, _ in await rig.events("m")]
        assert reasons.count("SeedElected") == 1
        assert reasons.count("SeedSealed") == 1
        assert reasons.count("SourceElected") == 1
        assert reasons.count("CloneSealed") == 3
        return "ReplicasReady" in reasons

    await eventually("the Events tell the story", told)
    view = (await rig.operator.get(f"/v1/modelreplicas/{rig.namespace}/m")).json()
    assert view["plan"][0]["source"] == a.node
    assert {n for n, v in view["nodes"].items() if v["arenas"]} == {a.node, b.node, c.node, d.node}
    held = {n: agent.wanted().role for n, agent in rig.agents.items() if agent.wanted()}  # type: ignore[union-attr]
    assert [n for n, role in held.items() if role == "hold"] == [a.node], held


async def test_status_says_how_far_a_clone_is(rig: Rig) -> None:
    a, b = await rig.node(1), await rig.node(2, hold_at=610)
    await create(rig, replicas=2)
    await seeded(rig, a)
    pod = await rig.pod("m", b)

    async def at() -> bool:
        condition = await rig.condition("m", "Ready")
        assert condition["reason"] == "Cloning", condition
        return f"pod {pod['metadata']['name']}: rank tp0 on {b.node} at 61 % from {a.node}" in condition["message"]

    await eventually("the message names replica, node, percent and parent", at)
    assert (await rig.condition("m", "Reconciling"))["status"] == "True"
    assert (await rig.condition("m", "Available"))["reason"] == "TooFewReplicasReady"


async def test_deletion_in_the_middle_of_a_clone_leaves_nothing(rig: Rig) -> None:
    a, b = await rig.node(1), await rig.node(2, hold_at=300)
    await create(rig, replicas=2)
    pods = [await seeded(rig, a), await rig.pod("m", b)]

    async def cloning() -> bool:
        arena = b.only()
        return arena is not None and arena.watermark == 300

    await eventually("the clone is in the middle", cloning)
    await rig.call("DELETE", rig.path("m"))
    for pod in pods:  # What garbage collection does.
        await rig.delete_pod(pod)

    async def gone() -> bool:
        return not a.arenas and not b.arenas and a.wanted() is None and b.wanted() is None

    await eventually("no arena is left and none is wanted", gone)
    assert (await rig.operator.get(f"/v1/modelreplicas/{rig.namespace}/m")).status_code == 404


async def test_a_killed_operator_goes_on_where_it_was_with_a_higher_epoch(rig: Rig) -> None:
    a, b, c = await rig.node(1), await rig.node(2, hold_at=300), await rig.node(3)
    await create(rig, replicas=3)
    await seeded(rig, a)
    await rig.pod("m", b)

    async def cloning() -> bool:
        arena = b.only()
        return arena is not None and arena.watermark == 300

    async def source_is_named() -> bool:
        return await sources() == [a.node]

    async def sources() -> list[str | None]:
        return [domain.get("sourceNode") for domain in (await rig.status("m")).get("domains") or []]

    await eventually("a clone is in the middle", cloning)
    await eventually("the status names the source", source_is_named)
    epoch = a.epoch
    rig.operator.kill()
    pod = await rig.pod("m", c)  # Comes while nobody is there.
    named: list[list[str | None]] = []

    async def both_sealed() -> bool:
        named.append(await sources())
        return all(agent.only() is not None and agent.only().state == "sealed" for agent in (b, c))  # type: ignore[union-attr]

    a.slow_s = 1.5  # The new operator must not judge before it has heard who holds what.
    rig.operator.start()
    b.hold_at = BYTES
    await eventually("both clones are sealed", both_sealed)
    await rig.operator.ready()
    assert named
    assert all(there == [a.node] for there in named), "an operator that has just started knows no less"
    assert a.epoch > epoch
    assert all(a_.state == "sealed" for agent in (a, b, c) for a_ in agent.arenas.values())
    assert a.only().way == "seed"  # type: ignore[union-attr]
    later = [[w.arena for w in put.arenas] for put in a.puts if put.epoch > epoch]
    assert later, "the new operator has spoken"
    assert all(list(a.arenas) == arenas for arenas in later), "and never told the source to go"
    await rig.set_ready(pod)
    status = await rig.status("m")
    assert status["domains"][0]["sourceNode"] == a.node


async def test_the_last_source_is_kept_when_its_pod_goes_and_dropped_at_zero(rig: Rig) -> None:
    a, b = await rig.node(1), await rig.node(2)
    await create(rig)
    pod = await seeded(rig, a)
    await rig.delete_pod(pod)
    again = await rig.pod("m", b)
    await sealed(b)
    assert b.only().way == "clone"  # type: ignore[union-attr]
    await rig.merge(rig.path("m"), {"spec": {"replicas": 0}})
    await rig.delete_pod(again)

    async def gone() -> bool:
        return not a.arenas and not b.arenas

    await eventually("scaled to zero, nothing is held", gone)


async def test_a_checkpoint_that_is_missing_degrades_and_recovers(rig: Rig) -> None:
    problem = Problem(reason="CheckpointMissing", message="/models/x/model-00001.safetensors is not there")
    a = await rig.node(1, seed_problem=problem)
    await create(rig)
    pod = await rig.pod("m", a)

    async def degraded() -> bool:
        one, two = await rig.condition("m", "Degraded"), await rig.condition("m", "Ready")
        assert (one["status"], one["reason"]) == ("True", "CheckpointMissing"), one
        assert (two["status"], two["reason"]) == ("False", "CheckpointMissing"), two
        return "model-00001.safetensors" in one["message"] and a.node in one["message"]

    await eventually("the file is named", degraded)
    a.seed_problem = None
    await sealed(a)
    await rig.set_ready(pod)

    async def recovered() -> bool:
        return (await rig.condition("m", "Degraded")).get("status") == "False" and (await rig.condition("m", "Ready"))[
            "status"
        ] == "True"

    await eventually("it recovers by itself", recovered)


async def test_a_dead_parent_is_replaced_and_told(rig: Rig) -> None:
    a, b, c = await rig.node(1), await rig.node(2, hold_at=500), await rig.node(3)
    await create(rig, replicas=3)
    await seeded(rig, a)
    await rig.pod("m", b)

    async def halfway(agent: FakeAgent) -> bool:
        arena = agent.only()
        return arena is not None and arena.watermark == 500

    await eventually("the first clone is halfway", lambda: halfway(b))
    await rig.pod("m", c)

    async def below_b() -> bool:
        arena = c.only()
        return arena is not None and arena.parent == b.node and arena.watermark == 500

    await eventually("the second clone hangs below the first", below_b)
    await b.stop()
    await sealed(c)
    assert c.only().parent == a.node  # type: ignore[union-attr]

    async def told() -> bool:
        return any(reason == "ParentReplaced" and b.node in note for reason, note in await rig.events("m"))

    await eventually("an Event tells of the replaced parent", told)


async def test_a_template_that_the_api_server_refuses_stalls(rig: Rig) -> None:
    bad = {"spec": {"containers": [{"name": "engine", "image": "x", "args": ["a"], "imagePullPolicy": "Sometimes"}]}}
    await rig.call("POST", rig.path(""), model_replica(template=bad))

    async def stalled() -> bool:
        condition = await rig.condition("m", "Stalled")
        assert condition["reason"] == "TemplateRejected"
        assert any(reason == "TemplateRejected" for reason, _ in await rig.events("m"))
        return "imagePullPolicy" in condition["message"] and condition["message"].endswith("correct spec.template")

    await eventually("the field is named", stalled)
    good = {"spec": {"containers": [{"name": "engine", "image": "x", "args": ["a"]}]}}
    await rig.merge(rig.path("m"), {"spec": {"template": good}})
    await eventually("the Deployment is applied", lambda: rig.deployment("m"))


async def test_a_pod_that_goes_in_a_gap_of_the_watches_is_gone_from_every_decision(rig: Rig) -> None:
    a, b, c = await rig.node(1), await rig.node(2, hold_at=500), await rig.node(3, hold_at=300)
    await create(rig, replicas=3)
    await seeded(rig, a)
    pod = await rig.pod("m", b)

    async def at(agent: FakeAgent, watermark: int) -> bool:
        arena = agent.only()
        return arena is not None and arena.watermark == watermark

    await eventually("the first clone is halfway", lambda: at(b, 500))
    await rig.pod("m", c)
    await eventually("the second one is on its way", lambda: at(c, 300))

    async def view() -> Object:
        got: Object = (await rig.operator.get(f"/v1/modelreplicas/{rig.namespace}/m")).json()
        return got

    async def chain() -> bool:
        found = await view()
        return bool(found["plan"][0]["parents"] == {b.node: a.node, c.node: b.node})

    await eventually("it hangs below the first", chain)
    key = f"/registry/pods/{rig.namespace}/{pod['metadata']['name']}"
    await asyncio.to_thread(rig.api.restart_without, key)

    async def gone() -> bool:
        found, status = await view(), await rig.status("m")
        assert pod["metadata"]["name"] not in [p["name"] for p in found["pods"]], "known"
        assert found["plan"][0]["parents"] == {c.node: a.node}, found["plan"][0]["parents"]
        assert status["replicas"] == 2, status["replicas"]
        assert pod["metadata"]["name"] not in str(status["conditions"]), status["conditions"]
        assert b.wanted() is None, "its node is still told to clone"
        wanted = c.wanted()
        return wanted is not None and [p.node for p in wanted.lanes[0].parents] == [a.node]

    await eventually("status, plan and orders know nothing of the pod", gone, 30)
    assert "the watch is too old, listing anew" in rig.operator.log.read_text(), "it was a 410 that told it"
    c.hold_at = BYTES
    await sealed(c)
    assert c.only().parent == a.node  # type: ignore[union-attr]
    again = await rig.pod("m", b)

    async def back() -> bool:
        return bool((await rig.status("m"))["replicas"] == 3) and again["metadata"]["name"] in str(await view())

    await eventually("and the watches work", back)


async def test_a_deleted_lease_locks_no_agent_out(rig: Rig) -> None:
    a = await rig.node(1)
    a.epoch = 41
    await create(rig)
    await seeded(rig, a)
    assert a.epoch == 42
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{rig.operator.namespace}/leases/flashboot-operator"
    assert (await rig.call("GET", lease))["spec"]["leaseTransitions"] == 42
    rig.operator.kill()
    await rig.call("DELETE", lease)
    rig.operator.start()
    await rig.operator.ready()

    async def told() -> bool:
        return a.epoch == 43 and bool(a.arenas)

    await eventually("the agent obeys the new operator", told)


async def test_a_termination_releases_the_lease(rig: Rig) -> None:
    assert rig.operator.kill(signal.SIGTERM) == 0
    lease = await rig.call(
        "GET", f"/apis/coordination.k8s.io/v1/namespaces/{rig.operator.namespace}/leases/flashboot-operator"
    )
    assert lease["spec"].get("holderIdentity", "") == ""


MISSED = 300
"""Changes between a backup and its restoration. A real backup is hours old; if it were seconds old, an API server's own
writes at its start would bring the versions to where they had been, before the operator could see that they went back.
"""


@pytest.mark.timeout(300)
async def test_an_etcd_that_is_restored_from_a_backup_is_followed(rig: Rig) -> None:
    """Versions go back: what came after the backup is gone, and what happens from then on is seen."""
    a, b = [await rig.node(n) for n in (1, 2)]
    await create(rig)
    await seeded(rig, a)

    async def counted(replicas: int) -> bool:
        return bool((await rig.status("m"))["replicas"] == replicas)

    await eventually("it serves", lambda: counted(1))
    backup = await asyncio.to_thread(rig.api.snapshot)
    await rig.merge(rig.path("m", "scale"), {"spec": {"replicas": 2}})
    await rig.pod("m", b)
    await sealed(b)
    await rig.call("POST", rig.path(""), model_replica("after"))
    await eventually("what comes after the backup is seen", lambda: rig.deployment("after"))
    await eventually("and counted", lambda: counted(2))
    for turn in range(MISSED):
        await rig.merge(f"/api/v1/namespaces/{rig.namespace}", {"metadata": {"annotations": {"turn": str(turn)}}})
    await asyncio.to_thread(rig.api.restore, backup)

    async def known() -> dict[str, Any]:
        items = (await rig.operator.get(f"/v1/modelreplicas?namespace={rig.namespace}")).json()["items"]
        return {item["name"]: item["desired"] for item in items}

    async def gone() -> bool:
        assert await known() == {"m": 1}, await known()
        return await counted(1)

    await eventually("the operator knows what is there, and no more", gone, 180)  # kopf gives a silent watch 70 s
    await rig.merge(rig.path("m", "scale"), {"spec": {"replicas": 3}})

    async def scaled() -> bool:
        return bool((await rig.deployment("m"))["spec"]["replicas"] == 3)

    # What the operator knows may be what its resync read: kopf's own watch may be silent for a while yet.
    await eventually("a change is seen, too", scaled, 90)
    await rig.pod("m", b)
    await eventually("a pod, too", lambda: counted(2))
    assert [reason for reason, _ in await rig.events("m")].count("SeedElected") == 1
