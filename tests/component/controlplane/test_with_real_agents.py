"""The operator, a real API server, and real agents with real holders: only kubelet, door and engine are played."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.wire.base import now
from flashboot_agent.wire.door import PublishedPod
from tests.component.agents import AGENT_FOLDER, MIB, Cluster, Node
from tests.component.controlplane import identities
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_crd import model_replica

pytestmark = pytest.mark.apiserver

WEDGE = Path(__file__).parents[1] / "wedge"
DATA = random.Random(7).randbytes(8 * MIB)
Object = dict[str, Any]


def publish(node: Node, pod: Object, model_replica: str) -> None:
    """What the door does on NodePublish."""
    meta = pod["metadata"]
    (node.run / "pods" / meta["uid"]).mkdir()
    facts = PublishedPod(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        service_account="default",
        model_replica=model_replica,
        published_at=now(),
    )
    file = node.run / "meta" / f"{meta['uid']}.json"
    file.with_suffix(".tmp").write_bytes(facts.to_json())
    file.with_suffix(".tmp").rename(file)


async def real_node(rig: Rig, cluster: Cluster, name: str) -> Node:
    """Not enrolled: the operator does that."""
    issuer = await asyncio.to_thread(identities.issuer, rig.api, rig.operator.namespace)
    node = cluster.node(name, start=False, issuer=issuer, enrolled=False)
    await rig.agent_pod(name, node.ip, ca_file=node.ca_file, token_file=node.token_file)
    await asyncio.to_thread(node.start_holder)
    await asyncio.to_thread(node.start_agent)
    return node


@pytest.fixture
async def nodes(rig: Rig, cluster: Cluster) -> AsyncIterator[list[Node]]:
    made = []
    for number in range(3):
        name = f"{rig.namespace}-{number}"
        await rig.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        made.append(await real_node(rig, cluster, name))
    yield made
    for node in made:
        await rig.call("DELETE", f"/api/v1/namespaces/{rig.operator.namespace}/pods/agent-{node.name}")
        await rig.call("DELETE", f"/api/v1/nodes/{node.name}")


async def bound(rig: Rig, node: Node) -> Object:
    """A pod on the node, its volume published."""
    template = (await rig.deployment("m"))["spec"]["template"]
    pod = await rig.pod_on("m", template, node.name, node.ip)
    publish(node, pod, "m")
    return pod


def arenas(node: Node) -> list[tuple[str, str | None]]:
    return [(a.state, a.digest) for a in node.observed().arenas]


async def test_scale_up_by_cloning_and_deletion(rig: Rig, nodes: list[Node]) -> None:
    await rig.call("POST", rig.path(""), model_replica())
    await eventually("the Deployment is applied", lambda: rig.deployment("m"))
    a, b, c = nodes
    pods = [await bound(rig, a)]

    def seed() -> str:
        with a.engine(pods[0]["metadata"]["uid"]) as engine:
            return engine.seed(DATA).digest

    digest = await asyncio.to_thread(seed)
    await rig.set_ready(pods[0])
    await rig.merge(rig.path("m", "scale"), {"spec": {"replicas": 3}})
    pods += [await bound(rig, b), await bound(rig, c)]

    async def sealed(node: Node) -> bool:
        return await asyncio.to_thread(arenas, node) == [("sealed", digest)]

    for node in (b, c):
        await eventually(f"{node.name} is complete before any engine asked", lambda node=node: sealed(node), 40)  # type: ignore[misc]

    def attach(node: Node, uid: str) -> bytes:
        with node.engine(uid) as engine:
            return engine.attach()[1]

    for node, pod in ((b, pods[1]), (c, pods[2])):
        assert await asyncio.to_thread(attach, node, pod["metadata"]["uid"]) == DATA
    sent = {node.name: (await asyncio.to_thread(node.observed)).arenas[0].bytes_out for node in nodes}
    assert sent[a.name] <= 1.02 * len(DATA), f"the source fed one of the two: {sent}"

    async def told() -> bool:
        reasons = [reason for reason, _ in await rig.events("m")]
        return reasons.count("CloneSealed") == 2 and reasons.count("SeedSealed") == 1

    await eventually("the Events tell it", told)
    await rig.call("DELETE", rig.path("m"))
    for node, pod in zip(nodes, pods, strict=True):
        await rig.delete_pod(pod)
        (node.run / "meta" / f"{pod['metadata']['uid']}.json").unlink()
        shutil.rmtree(node.run / "pods" / pod["metadata"]["uid"])

    def left() -> list[str]:
        return [line for node in nodes for line in node.memory_files()]

    async def nothing() -> bool:
        return await asyncio.to_thread(left) == [] and all([await asyncio.to_thread(n.held) == 0 for n in nodes])

    await eventually("no arena, no mapping is left", nothing, 40)


async def test_a_source_that_answers_but_gives_no_bytes_is_quarantined_until_it_gives_some(
    rig: Rig, nodes: list[Node], tmp_path: Path
) -> None:
    a, b, c = nodes
    await rig.call("POST", rig.path(""), model_replica(replicas=2))
    await eventually("the Deployment is applied", lambda: rig.deployment("m"))
    wedge = tmp_path / "wedged"
    a.forked = False  # Python reads our sitecustomize at its start
    a.env = {"FLASHBOOT_TEST_WEDGE": str(wedge), "PYTHONPATH": f"{WEDGE}{os.pathsep}{AGENT_FOLDER}"}
    await asyncio.to_thread(a.kill_agent)
    await asyncio.to_thread(a.start_agent)
    pods = [await bound(rig, a)]

    def seed() -> None:
        with a.engine(pods[0]["metadata"]["uid"]) as engine:
            engine.seed(DATA)

    await asyncio.to_thread(seed)
    await rig.set_ready(pods[0])
    wedge.touch()
    await bound(rig, b)

    async def told(reason: str) -> str:
        found = [note for kind, note in await rig.events("m") if kind == reason]
        assert found, reason
        return found[0]

    note = await eventually("the source is quarantined", lambda: told("SourceQuarantined"), 60)
    assert a.name in note

    async def explained() -> bool:
        domain = (await rig.status("m"))["domains"][0]
        condition = await rig.condition("m", "SourceAvailable")
        assert (domain["sourceNode"], domain["sourceReason"]) == (a.name, "SourceQuarantined"), domain
        return f"{a.name} is quarantined" in domain["sourceMessage"] and condition["reason"] == "SourceQuarantined"

    await eventually("the status says so", explained)
    assert (await asyncio.to_thread(a.observed)).arenas[0].state == "sealed", "and it still says that all is well"
    words = {node.name: (await asyncio.to_thread(node.observed)).probes for node in (b, c)}
    assert [p.node for said in words.values() for p in said] == [a.name], "one of the others tries it"
    wedge.unlink()
    await eventually("a try that brings a chunk lifts it", lambda: told("QuarantineLifted"), 90)

    async def cloned() -> bool:
        domain = (await rig.status("m"))["domains"][0]
        state = [arena.state for arena in (await asyncio.to_thread(b.observed)).arenas]
        return state == ["sealed"] and domain["sourceReason"] in ("ServingAndSealed", "IdleAndSealed")

    await eventually("the clone is complete", cloned, 40)


async def test_certificates_are_renewed_without_a_break(rig: Rig, nodes: list[Node]) -> None:
    rig.operator.kill()
    node = nodes[0]
    await asyncio.to_thread(node.kill_agent)
    (node.run / "agent" / "credentials.pem").unlink()
    await asyncio.to_thread(node.start_agent)
    rig.operator.start(FLASHBOOT_CERTIFICATE_SECONDS="10")
    ends: set[datetime | None] = set()

    async def end() -> datetime | None:
        return (await asyncio.to_thread(node.observed)).certificate_expires_at

    async def three() -> bool:
        ends.add(await end())
        return len(ends) >= 3

    try:
        await eventually("there is a certificate", end, 30)
        await eventually("three certificates of ten seconds, one after the other", three, 60)
        assert None not in ends, "there was one that counted at every moment"
        said = rig.operator.log.read_text()
        assert said.count("agent does not answer") == 0
        assert said.count("agent not enrolled") == 0
    finally:
        rig.operator.kill()
        rig.operator.start()
        await rig.operator.ready()


async def test_an_agent_whose_certificate_ended_is_enrolled_again(rig: Rig, nodes: list[Node]) -> None:
    """As after an operator that was away for a day."""
    rig.operator.kill()
    node = nodes[0]
    await asyncio.to_thread(node.kill_agent)
    issuer = await asyncio.to_thread(identities.issuer, rig.api, rig.operator.namespace)
    issuer.keep(node.name, node.run / "agent", life=timedelta(seconds=-1))
    await asyncio.to_thread(node.start_agent)
    assert (await asyncio.to_thread(node.observed)).certificate_expires_at is None
    rig.operator.start()
    await rig.operator.ready()

    async def healed() -> bool:
        return (await asyncio.to_thread(node.observed)).certificate_expires_at is not None

    await eventually("the agent has a certificate again", healed, 30)
