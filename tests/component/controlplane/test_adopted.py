"""Pods of other people's workloads: a Deployment with the label alone, and groups as LeaderWorkerSet makes them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.component.controlplane.fakeagents import FakeAgent
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_crd import model_replica
from tests.component.controlplane.test_groups import counted, expect
from tests.component.controlplane.test_injection import policy

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]
LWS = "leaderworkerset.sigs.k8s.io"
ENGINE: Object = {"name": "server", "image": "mine", "args": ["serve"]}
__all__ = ["policy"]


def template(labels: dict[str, str], env: list[Object] | None = None) -> Object:
    containers = [{**ENGINE, "env": env or []}]
    return {"metadata": {"labels": {"flashboot.io/model-replica": "m", **labels}}, "spec": {"containers": containers}}


async def started(rig: Rig, made: Object, agent: FakeAgent) -> Object:
    """kubelet has published the volume of a pod, if it has one."""
    pod = await rig.pod_on("mine", made, agent.node, agent.ip)
    volumes = [v["csi"]["volumeAttributes"] for v in pod["spec"].get("volumes") or [] if v["name"] == "flashboot"]
    if volumes != [{"flashboot.io/model-replica": "m"}]:
        await rig.delete_pod(pod)
        raise AssertionError(f"no volume: the policy is not in effect; {pod['spec']}")
    await agent.publish(pod["metadata"]["uid"], rig.namespace, pod["metadata"]["name"], "m")
    return pod


async def ways(agents: list[FakeAgent]) -> list[list[tuple[str, str, str]]]:
    return [[(str(a.place), a.way, a.state) for a in agent.arenas.values()] for agent in agents]


async def test_pods_of_a_users_deployment_clone_and_count(rig: Rig, policy: None) -> None:
    agents = [await rig.node(1), await rig.node(2)]
    await rig.call("POST", rig.path(""), model_replica(template=None, replicas=None))
    theirs = template({"app": "theirs"})
    pods = [await eventually("the first pod", lambda: started(rig, theirs, agents[0]))]

    async def seeded() -> bool:
        return await ways(agents[:1]) == [[("tp0", "seed", "sealed")]]

    await eventually("it loads the checkpoint", seeded)
    pods.append(await started(rig, theirs, agents[1]))

    async def cloned() -> bool:
        return await ways(agents[1:]) == [[("tp0", "clone", "sealed")]]

    await eventually("the second one clones", cloned)
    for pod in pods:
        await rig.set_ready(pod)
    await counted(rig, 2, 2)
    for kind in ("statefulsets", "poddisruptionbudgets", "services"):
        await expect(rig, kind, [])


async def test_groups_of_a_leader_worker_set_clone_rank_by_rank_and_count(rig: Rig, policy: None) -> None:
    """By its conventions; its controller has never run here."""
    agents = [await rig.node(n) for n in (1, 2, 3, 4)]
    adopting: Object = {"template": None, "replicas": None, "group": {"size": 2}, "parallelism": {"tensor": 2}}
    await rig.call("POST", rig.path(""), model_replica(**adopting))

    async def pod(group: int, index: int) -> Object:
        labels = {f"{LWS}/name": "big", f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(index)}
        env = [
            {"name": "LWS_LEADER_ADDRESS", "value": f"big-{group}.big.{rig.namespace}"},
            {"name": "LWS_GROUP_SIZE", "value": "2"},
            {"name": "LWS_WORKER_INDEX", "value": str(index)},
        ]
        agent = agents[2 * group + index]
        return await eventually("a pod", lambda: started(rig, template(labels, env), agent))

    pods = [await pod(0, index) for index in (0, 1)]

    async def seeded() -> bool:
        return await ways(agents[:2]) == [[("tp0", "seed", "sealed")], [("tp1", "seed", "sealed")]]

    await eventually("each pod loads its rank", seeded)
    pods += [await pod(1, index) for index in (0, 1)]

    async def cloned() -> bool:
        return await ways(agents[2:]) == [[("tp0", "clone", "sealed")], [("tp1", "clone", "sealed")]]

    await eventually("each pod of the second group clones its rank", cloned)
    for made in pods:
        await rig.set_ready(made)
    status = await counted(rig, 2, 2)
    assert status["selector"] == f"flashboot.io/model-replica=m,{LWS}/worker-index=0"
