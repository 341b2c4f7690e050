"""A cluster of light nodes: a real API server and etcd, the operator as a process, and agents that speak the real
protocol and move no bytes. A small scheduler and kubelet bind pods and say that they run.

For scale only: what a kubelet, a container runtime and an engine add is not in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from bench.kit.machine import REPO
from tests.component.controlplane import apiserver, identities
from tests.component.controlplane.fakeagents import FakeAgent
from tests.component.controlplane.rig import OperatorProcess, Rig, eventually, made_by
from tests.component.controlplane.rights import grant
from tests.component.controlplane.test_crd import model_replica

SYSTEM, NAMESPACE, NAME = "operator-under-test", "bench", "m"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BINDERS = 4
"""Bindings under way at a time, as of a scheduler."""
Object = dict[str, Any]


class LightAgent(FakeAgent):
    """Remembers when it was first told of a pod."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.told: dict[str, float] = {}

    async def _put(self, request: web.Request) -> web.Response:
        answer = await super()._put(request)
        now = time.time()
        for uid in {uid for arena in (self.desired.arenas if self.desired else []) for uid in arena.pods}:
            self.told.setdefault(uid, now)
        return answer


@dataclass
class Cluster:
    rig: Rig
    nodes: list[FakeAgent] = field(default_factory=list)

    async def seed(self) -> None:
        """A ModelReplica with a replica on the first node that has loaded the checkpoint."""
        await self.rig.call("POST", self.rig.path(""), model_replica(name=NAME, replicas=len(self.nodes)))
        await eventually("the Deployment", lambda: self.rig.deployment(NAME), 60)
        pod = await self.rig.pod(NAME, self.nodes[0])
        await self._sealed(self.nodes[:1])
        await self.rig.set_ready(pod)

    async def scale_up(self) -> dict[str, float]:
        """A pod on every other node, all bound at once. Pod → wall clock of its binding, as the scheduler asks for it.

        Their volumes are published once all agents were told: a kubelet takes longer for them than all of this. Returns
        when all arenas are complete, and removes the pods again."""
        targets = self.nodes[1:]
        pods = [await self._pending(number) for number in range(len(targets))]
        slots = asyncio.Semaphore(BINDERS)
        at: dict[str, float] = {}

        async def bind(pod: Object, agent: FakeAgent) -> None:
            async with slots:
                at[pod["metadata"]["uid"]] = time.time()
                await self._bind(pod, agent)
            await self._told(agent, pod["metadata"]["uid"])

        async def publish(pod: Object, agent: FakeAgent) -> None:
            await agent.publish(pod["metadata"]["uid"], NAMESPACE, pod["metadata"]["name"], NAME)

        for step in (bind, publish):
            await asyncio.gather(*(step(pod, agent) for pod, agent in zip(pods, targets, strict=True)))
        await self._sealed(targets)
        for pod in pods:
            await self.rig.delete_pod(pod)
        await eventually("the clones are dropped", lambda: _answer(not any(a.arenas for a in targets)), 60)
        return at

    async def _pending(self, number: int) -> Object:
        template = (await self.rig.deployment(NAME))["spec"]["template"]
        owners = made_by("ReplicaSet", f"{NAME}-0")
        metadata = {**template["metadata"], "name": f"{NAME}-{time.time_ns()}-{number}", "ownerReferences": owners}
        body = {"metadata": metadata, "spec": template["spec"]}
        made: Object = await self.rig.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        return made

    async def _bind(self, pod: Object, agent: FakeAgent) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}"
        target = {"apiVersion": "v1", "kind": "Node", "name": agent.node}
        await self.rig.call(
            "POST", f"{path}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target}
        )
        await self.rig.merge(f"{path}/status", {"status": {"phase": "Running", "podIP": agent.ip}})

    async def _told(self, agent: FakeAgent, uid: str) -> None:
        assert isinstance(agent, LightAgent)
        await eventually(f"{agent.node} is told", lambda: _answer(uid in agent.told), 60)

    async def _sealed(self, agents: Iterable[FakeAgent]) -> None:
        there = list(agents)

        async def check() -> bool:
            return all((arena := agent.only()) is not None and arena.state == "sealed" for agent in there)

        await eventually(f"{len(there)} arenas are sealed", check, 120)


async def _answer(value: bool) -> bool:
    return value


@asynccontextmanager
async def cluster(nodes: int, folder: Path) -> AsyncIterator[Cluster]:
    """`folder`: is there, for the operator's log."""
    binaries = apiserver.binaries()
    if binaries is None:
        raise RuntimeError("needs kube-apiserver and etcd: run `make setup`")
    api = await asyncio.to_thread(apiserver.launch, binaries)
    operator: OperatorProcess | None = None
    rig: Rig | None = None
    try:
        crd = yaml.safe_load((REPO / "crds" / "flashboot.io_modelreplicas.yaml").read_text())
        api.create(CRDS, crd)
        for name in (SYSTEM, NAMESPACE):
            api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        grant(api, SYSTEM)
        identities.prepare(api, SYSTEM)
        operator = OperatorProcess(api, SYSTEM, folder, forked=False)
        rig = Rig(api, NAMESPACE, operator, agent=LightAgent)
        operator.start()
        await operator.ready()
        made = Cluster(rig)
        for number in range(nodes):
            made.nodes.append(await rig.node(number))
        await made.seed()
        yield made
    finally:
        if rig is not None:
            await rig.close()
        if operator is not None:
            operator.kill()
        await asyncio.to_thread(api.stop)


def stages(log: Path) -> dict[str, dict[str, float]]:
    """Pod → what the operator says of the way to its agent, from its log."""
    lines = (json.loads(line) for line in log.read_text().splitlines() if line.startswith("{"))
    return {line["pod"]: line for line in lines if line["event"] == "agent told of a pod"}
