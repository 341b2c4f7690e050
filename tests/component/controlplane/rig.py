"""The operator as a process of its own, between a real API server and agents that are real HTTP servers.

There are no kubelets and no controllers: the test itself makes nodes, and pods from the Deployment that it finds.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from flashboot_agent.node.identity import NodeIdentity
from flashboot_agent.trust.credentials import CredentialStore
from tests.component.controlplane import identities
from tests.component.controlplane.apiserver import REPO, ApiError, ApiServer, free_port
from tests.component.controlplane.fakeagents import FakeAgent
from tests.component.nursery import OPERATORS, Forked, nursery

Object = dict[str, Any]
T = TypeVar("T")


async def eventually(what: str, check: Callable[[], Awaitable[T]], deadline_s: float = 15) -> T:
    """The first true answer of `check`; AssertionErrors inside count as not yet."""
    end = time.monotonic() + deadline_s
    last: object = None
    while time.monotonic() < end:
        try:
            last = await check()
            if last:
                return last
        except (AssertionError, ApiError, KeyError, IndexError, TypeError, httpx.HTTPError) as error:
            last = repr(error)
        await asyncio.sleep(0.03)
    raise AssertionError(f"not within {deadline_s} s: {what}; last answer: {json.dumps(last, default=str)[:1500]}")


class OperatorProcess:
    """One operator for all tests; those that kill it start it again. Two at once would act on the same objects."""

    def __init__(self, api: ApiServer, namespace: str, folder: Path, *, forked: bool = True) -> None:
        """`forked`: it comes from the nursery."""
        self.api = api
        self.namespace = namespace
        self.agent_port = 9440  # Each agent has an address of its own on loopback.
        self.http_port = free_port()
        self._folder = folder
        self._forked = forked
        self._process: Forked | subprocess.Popen[bytes] | None = None
        self._starts = 0

    def start(self, **environment: str) -> None:
        """Nothing, when it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self._starts += 1
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{REPO}/operator:{REPO}/agent",
            "KUBECONFIG": str(self.api.operators_kubeconfig),
            "POD_NAMESPACE": self.namespace,
            "POD_NAME": "operator-0",
            "FLASHBOOT_HTTP_HOST": "127.0.0.1",
            "FLASHBOOT_HTTP_PORT": str(self.http_port),
            "FLASHBOOT_AGENT_PORT": str(self.agent_port),
            "FLASHBOOT_LEASE_SECONDS": "60",
            "FLASHBOOT_RENEW_DEADLINE_SECONDS": "45",
            **environment,
        }
        if self._forked:
            self._process = nursery(OPERATORS).start(*OPERATORS, [], env, self.log)
            return
        command = [sys.executable, "-m", *OPERATORS]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, cwd=self._folder)

    @property
    def log(self) -> Path:
        return self._folder / f"operator-{self._starts}.log"

    def logs(self) -> list[Path]:
        return sorted(self._folder.glob("operator-*.log"))

    @property
    def pid(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    def kill(self, number: int = signal.SIGKILL) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(timeout=20)
        self._process = None
        return code

    async def ready(self) -> None:
        async def check() -> bool:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"the operator ended:\n{self.log.read_text()[-3000:]}")
            answer = await self.get("/readyz")
            return answer.status_code == 200 and bool(answer.json()["nodesMayBeTold"])

        await eventually("the operator leads and is ready", check, 60)

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:  # plain HTTP: no CAs need be read
            return await http.get(f"http://127.0.0.1:{self.http_port}{path}", timeout=5)


_hosts = itertools.count(os.getpid() % 200 * 250 + 1)
"""Numbers of loopback addresses; another checkout may run its tests at the same time."""


class Rig:
    """One test's nodes, agents and ModelReplicas."""

    def __init__(
        self, api: ApiServer, namespace: str, operator: OperatorProcess, *, agent: type[FakeAgent] = FakeAgent
    ) -> None:
        self.api = api
        self.namespace = namespace
        self.operator = operator
        self._agent = agent
        self.agents: dict[str, FakeAgent] = {}
        self._pods = 0
        self._folder = Path(tempfile.mkdtemp(prefix="flashboot-rig-"))

    async def close(self) -> None:
        for item in (await self.call("GET", self.path("")))["items"]:
            await self._quiet("DELETE", self.path(item["metadata"]["name"]))
        for name in self.agents:
            await self._quiet("DELETE", f"/api/v1/namespaces/{self.operator.namespace}/pods/agent-{name}")
            await self._quiet("DELETE", f"/api/v1/nodes/{name}")
        for agent in self.agents.values():
            await agent.close()
        shutil.rmtree(self._folder)

    async def _quiet(self, method: str, path: str) -> None:
        try:
            await self.call(method, path, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.code != 404:
                raise

    # The cluster

    async def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        return await asyncio.to_thread(self.api.call, method, path, body, content)

    async def merge(self, path: str, body: Any) -> Any:
        return await self.call("PATCH", path, body, "application/merge-patch+json")

    def path(self, name: str, sub: str = "") -> str:
        parts = (f"/apis/flashboot.io/v1alpha1/namespaces/{self.namespace}/modelreplicas", name, sub)
        return "/".join(p for p in parts if p)

    async def node(self, number: int, **agent: Any) -> FakeAgent:
        """A node with an agent that runs and a pod object that says where."""
        host = next(_hosts)
        name, ip = f"{self.namespace}-node-{number}", f"127.77.{host // 250}.{host % 250 + 1}"
        await self.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        await self.merge(f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": _NODE_INFO}})
        mounts = self._folder / name
        mounts.mkdir()
        identity = NodeIdentity(CredentialStore(name, mounts), ca_file=mounts / "ca.crt", token_file=mounts / "token")
        self.agents[name] = self._agent(node=name, ip=ip, port=self.operator.agent_port, identity=identity, **agent)
        await self.agent_pod(name, ip, ca_file=mounts / "ca.crt", token_file=mounts / "token")
        await self.agents[name].start()
        return self.agents[name]

    async def agent_pod(self, node: str, ip: str, *, ca_file: Path, token_file: Path) -> None:
        """The pod of an agent, and what kubelet mounts into it."""
        metadata = {"labels": {"app.kubernetes.io/name": "flashboot-agent"}}
        namespace, pod = self.operator.namespace, f"agent-{node}"
        spec = {"serviceAccountName": identities.SERVICE_ACCOUNT}
        await self._pod(pod, metadata, spec, node, ip, namespace=namespace)
        await asyncio.to_thread(identities.mount, self.api, namespace, pod, ca_file=ca_file, token_file=token_file)

    async def _pod(
        self, name: str, metadata: Object, template: Object, node: str, ip: str, *, namespace: str = ""
    ) -> Object:
        pods = f"/api/v1/namespaces/{namespace or self.namespace}/pods"
        spec = {**copy.deepcopy(template), "nodeName": node, "tolerations": [{"operator": "Exists"}]}
        spec.setdefault("containers", [{"name": "c", "image": "i"}])
        body = {"metadata": {**metadata, "name": name}, "spec": spec}
        made = await self.call("POST", pods, body)
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": made["metadata"]["creationTimestamp"]}
            ],
        }
        got: Object = await self.merge(f"{pods}/{name}/status", {"status": status})
        return got

    async def deployment(self, name: str) -> Object:
        got: Object = await self.call("GET", f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{name}")
        return got

    async def pod(self, model_replica: str, agent: FakeAgent, *, publish: bool = True) -> Object:
        """A pod as the Deployment's controller would make it, bound to the agent's node, its volume published."""
        template = (await self.deployment(model_replica))["spec"]["template"]
        made = await self.pod_on(model_replica, template, agent.node, agent.ip)
        if publish:
            await agent.publish(made["metadata"]["uid"], self.namespace, made["metadata"]["name"], model_replica)
        return made

    async def pod_at(self, name: str, ip: str, *, namespace: str) -> Object:
        """A pod of nobody's that runs on no node of ours and has this address."""
        return await self._pod(name, {}, {}, "elsewhere", ip, namespace=namespace)

    async def pod_on(self, model_replica: str, template: Object, node: str, ip: str) -> Object:
        self._pods += 1
        metadata = {**template["metadata"], "ownerReferences": made_by("ReplicaSet", f"{model_replica}-0")}
        return await self._pod(f"{model_replica}-{self._pods}", metadata, template["spec"], node, ip)

    async def group(self, name: str, *agents: FakeAgent) -> list[Object]:
        """The pods of a group as its StatefulSet's controller would make them, on these agents' nodes in order, their
        volumes published."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{name}"
        made = await eventually(f"StatefulSet {name} is there", lambda: self.call("GET", path))
        return [await self.member(made, index, agent) for index, agent in enumerate(agents)]

    async def member(self, set_: Object, index: int, agent: FakeAgent) -> Object:
        """One pod of a StatefulSet."""
        template, name = set_["spec"]["template"], f"{set_['metadata']['name']}-{index}"
        labels = {**template["metadata"]["labels"], "apps.kubernetes.io/pod-index": str(index)}
        owners = made_by("StatefulSet", set_["metadata"]["name"])
        metadata = {**template["metadata"], "labels": labels, "ownerReferences": owners}
        made = await self._pod(name, metadata, template["spec"], agent.node, agent.ip)
        owner = labels["flashboot.io/model-replica"]
        await agent.publish(made["metadata"]["uid"], self.namespace, name, owner)
        return made

    async def set_ready(self, pod: Object) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": pod["metadata"]["creationTimestamp"]},
            {"type": "Ready", "status": "True", "lastTransitionTime": now},
        ]
        await self.merge(f"{path}/status", {"status": {"conditions": conditions}})

    async def delete_pod(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        await self.call("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}", {"gracePeriodSeconds": 0})
        for agent in self.agents.values():
            await agent.unpublish(pod["metadata"]["uid"])

    async def status(self, name: str) -> Object:
        got: Object = (await self.call("GET", self.path(name))).get("status") or {}
        return got

    async def condition(self, name: str, kind: str) -> Object:
        found = [c for c in (await self.status(name)).get("conditions") or [] if c["type"] == kind]
        return found[0] if found else {}

    async def events(self, name: str) -> list[tuple[str, str]]:
        got = await self.call("GET", f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [(e["reason"], e["note"]) for e in got["items"] if e["regarding"]["name"] == name]


def made_by(kind: str, name: str) -> list[Object]:
    """The owner that a pod's controller names in it."""
    return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": str(uuid.uuid4()), "controller": True}]


_NODE_INFO = {
    "architecture": "amd64",
    "bootID": "-",
    "containerRuntimeVersion": "-",
    "kernelVersion": "-",
    "kubeProxyVersion": "-",
    "kubeletVersion": "-",
    "machineID": "-",
    "operatingSystem": "linux",
    "osImage": "-",
    "systemUUID": "-",
}
