"""What the operator costs the API server: little when every write is refused, nothing when nothing changes.

A proxy between the two counts, and refuses what a test wants refused. The operator here is one of its own, since the
session's would otherwise act on the same objects: it is stopped meanwhile.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.controlplane.apiserver import ApiServer
from tests.component.controlplane.fakeagents import BYTES, FakeAgent
from tests.component.controlplane.proxy import Fault, Proxy, Seen
from tests.component.controlplane.rig import OperatorProcess, Rig, eventually, made_by
from tests.component.controlplane.test_crd import model_replica

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]
CLIQUE = "nvidia.com/gpu.clique"
STORM_S = 5.0
QUIET_S = 10.0
ALWAYS = {"watch", "update leases", "get leases", "get secrets", "get configmaps"}
"""What goes on in a quiet time: watches, the Lease, and once a minute a look at the CA."""


@pytest.fixture
async def proxy(api: ApiServer) -> AsyncIterator[Proxy]:
    async with Proxy(api).running() as made:
        yield made


@pytest.fixture
async def rig(
    api: ApiServer, namespace: str, operator: OperatorProcess, proxy: Proxy, tmp_path: Path
) -> AsyncIterator[Rig]:
    operator.kill()
    operator.start(
        KUBECONFIG=str(proxy.kubeconfig(tmp_path / "kubeconfig")),
        FLASHBOOT_RESYNC_SECONDS="3600",
        FLASHBOOT_STATUS_WRITES_PER_SECOND="100",
    )
    await operator.ready()
    made = Rig(api, namespace, operator)
    yield made
    await made.close()
    operator.kill()


async def create(rig: Rig, name: str, **spec: Any) -> Object:
    body = model_replica(**spec)
    got: Object = await rig.call("POST", rig.path(""), {**body, "metadata": {"name": name}})
    return got


STORMS = {"409": 409, "422": 422, "429": 429, "500": 500, "404": 404}


async def test_no_error_makes_a_hot_loop(rig: Rig, proxy: Proxy) -> None:
    """Five ModelReplicas, each with an error of its own to all its writes, while their pods and nodes change all the
    time; then watches that end at once."""
    node = await rig.node(1)
    proxy.faults = [Fault("PATCH|PUT|POST", f"/m{code}([/?]|$)", status) for code, status in STORMS.items()]
    names = [f"m{code}" for code in STORMS]
    for name in names:
        await create(rig, name)

    def calls(name: str, since: float = 0.0) -> list[Seen]:
        return [s for s in proxy.since(since) if f"/{name}/" in f"{s.path}/"]

    async def stormed() -> bool:
        spared = [n for n in names if not any(s.status == STORMS[n[1:]] for s in calls(n))]
        assert not spared, (spared, proxy.tally(0))
        return True

    await eventually("each has met its storm", stormed, 30)
    began = time.monotonic()
    while time.monotonic() - began < STORM_S:  # Each label marks every ModelReplica dirty.
        label = {CLIQUE: f"rack{int(10 * time.monotonic()) % 7}"}
        await rig.merge(f"/api/v1/nodes/{node.node}", {"metadata": {"labels": label}})
        await asyncio.sleep(0.05)
    for name in names:
        many = len(calls(name, began))
        assert many <= 2 * STORM_S, f"{name}: {many} calls in {STORM_S} s: {proxy.tally(began)}"
    proxy.faults = []

    async def told() -> bool:
        reasons = {name: (await rig.condition(name, "Ready")).get("reason") for name in names}
        assert not {None, "FirstSeen"} & set(reasons.values()), reasons
        return True

    await eventually("all are told of once the storm is over", told, 40)


async def test_watches_that_end_at_once_are_no_hot_loop(rig: Rig, proxy: Proxy) -> None:
    # kopf's own watch is left alone: of a 410 as a status, which no API server gives, it makes the end of the process.
    proxy.faults = [Fault("GET", "^(?!.*modelreplicas).*watch=true", 410)]
    proxy.cut()
    began = time.monotonic()
    await asyncio.sleep(STORM_S)
    watched = [s for s in proxy.since(began) if s.call.verb in ("list", "watch")]
    assert watched, "no watch was refused"
    assert len(watched) <= 5 * 2 * 6, proxy.tally(began)
    proxy.faults = []
    await create(rig, "after")
    await eventually("the watches work again", lambda: rig.deployment("after"), 40)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def create_with_pods(rig: Rig, name: str, agents: list[FakeAgent]) -> None:
    """A ModelReplica, and a Ready pod of it on the node of each of the agents."""
    await rig.call("POST", rig.path(""), model_replica(name=name, replicas=len(agents)))
    folder = f"/api/v1/namespaces/{rig.namespace}/pods"
    made = await eventually(f"the Deployment of {name}", lambda: rig.deployment(name), 60)
    template = made["spec"]["template"]
    for number, agent in enumerate(agents):
        owners = made_by("ReplicaSet", f"{name}-0")
        meta = {**template["metadata"], "name": f"{name}-{number}", "ownerReferences": owners}
        spec = {**template["spec"], "nodeName": agent.node, "tolerations": [{"operator": "Exists"}]}
        pod = await rig.call("POST", folder, {"metadata": meta, "spec": spec})
        at = pod["metadata"]["creationTimestamp"]
        conditions = [{"type": t, "status": "True", "lastTransitionTime": at} for t in ("PodScheduled", "Ready")]
        status = {"phase": "Running", "podIP": agent.ip, "conditions": conditions}
        await rig.merge(f"{folder}/{meta['name']}/status", {"status": status})
        await agent.publish(pod["metadata"]["uid"], rig.namespace, meta["name"], name)


@pytest.mark.timeout(600)
async def test_a_hundred_with_four_hundred_pods_cost_nothing_when_nothing_changes(rig: Rig, proxy: Proxy) -> None:
    nodes = [await rig.node(number, step=BYTES) for number in range(1, 11)]  # clones that say little meanwhile
    slots = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with slots:
            there = [nodes[(number + place) % len(nodes)] for place in range(4)]
            await create_with_pods(rig, f"m{number}", there)

    await asyncio.gather(*(one(number) for number in range(100)))

    async def all_cloned() -> bool:
        sealed = [arena for node in nodes for arena in node.arenas.values() if arena.state == "sealed"]
        assert len(sealed) == 400, f"{len(sealed)} of 400 arenas are complete"
        return True

    async def all_ready() -> bool:
        items = (await rig.call("GET", rig.path("")))["items"]
        ready = [i for i in items if (i.get("status") or {}).get("readyReplicas") == 4]
        assert len(ready) == 100, f"{len(ready)} of {len(items)} are ready"
        return True

    await eventually("all is cloned", all_cloned, 240)
    await eventually("all hundred are ready", all_ready, 240)
    await _calm(rig, proxy)
    before = resident_bytes(rig.operator.pid)
    for turn in range(10):  # Each makes the operator look at all of them again.
        label = f"rack{turn}" if turn < 9 else None
        await rig.merge(f"/api/v1/nodes/{nodes[-1].node}", {"metadata": {"labels": {CLIQUE: label}}})
        await asyncio.sleep(0.5)
    await _calm(rig, proxy)
    grown = resident_bytes(rig.operator.pid) - before
    assert grown < 8 << 20, f"{grown >> 20} MiB more after ten looks at everything"
    quiet = time.monotonic()
    await asyncio.sleep(QUIET_S)
    said = [s for s in proxy.since(quiet) if not {s.call.verb, f"{s.call.verb} {s.call.resource}"} & ALWAYS]
    assert not said, proxy.tally(quiet)
    assert proxy.tally(quiet)["get secrets 200"] <= 1, proxy.tally(quiet)
    assert resident_bytes(rig.operator.pid) - before < 8 << 20
    for folder in ("/api/v1/{}/pods", "/apis/apps/v1/{}/deployments", "/apis/policy/v1/{}/poddisruptionbudgets"):
        # There is no garbage collector, and the next tests' operators would mirror all of it.
        await rig.call("DELETE", folder.format(f"namespaces/{rig.namespace}"), {"gracePeriodSeconds": 0})


async def _calm(rig: Rig, proxy: Proxy) -> None:
    """Until nobody waits to be looked at or written, and nothing was written for two seconds."""

    async def quiet() -> bool:
        recent = proxy.since(time.monotonic() - 2)
        said = (await rig.operator.get("/metrics")).text
        waiting = re.findall(r"^flashboot_operator_(?:queue|upkeep)_length (\S+)", said, re.MULTILINE)
        return waiting == ["0.0", "0.0"] and not [s for s in recent if s.call.verb in ("patch", "create")]

    await eventually("the writes come to rest", quiet, 120)
