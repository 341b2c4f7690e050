"""Engines of different identities in one ModelReplica: operator, API server and agents are real, engines are played."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from flashboot_agent.core.identity import digest_of
from flashboot_agent.wire import attach
from flashboot_agent.wire.attach import Ready
from tests.component.agents import IDENTITY, MIB, Node
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_crd import model_replica
from tests.component.controlplane.test_with_real_agents import DATA, Object, bound, nodes

pytestmark = pytest.mark.apiserver
__all__ = ["nodes"]

OTHER = {**IDENTITY, "version.sglang": "0.5.24"}
OTHER_DATA = random.Random(8).randbytes(2 * MIB)


def seed(node: Node, pod: Object, identity: dict[str, str], data: bytes) -> Ready:
    with node.engine(pod["metadata"]["uid"], identity=identity) as engine:
        return engine.seed(data, identity)


def taken(node: Node, pod: Object, identity: dict[str, str]) -> bytes:
    with node.engine(pod["metadata"]["uid"], identity=identity) as engine:
        return engine.attach()[1]


def refused(node: Node, pod: Object, identity: dict[str, str]) -> str:
    with node.engine(pod["metadata"]["uid"], identity=identity) as engine:
        return engine.until(attach.Refused)[0].problem.message


def identities(node: Node) -> dict[str | None, str]:
    """Full identity → state, of the node's arenas."""
    return {arena.identity: arena.state for arena in node.observed().arenas}


async def started(rig: Rig, node: Node, **spec: Any) -> Object:
    """A ModelReplica of one pod, which seeded DATA."""
    await rig.call("POST", rig.path(""), model_replica(**spec))
    await eventually("the Deployment is applied", lambda: rig.deployment("m"))
    pod = await bound(rig, node)
    await asyncio.to_thread(seed, node, pod, IDENTITY, DATA)
    await rig.set_ready(pod)
    return pod


async def test_with_load_from_checkpoint_it_seeds_and_later_pods_like_it_clone_that(
    rig: Rig, nodes: list[Node]
) -> None:
    a, b, c = nodes
    await started(rig, a, replicas=3, transfer={"onMismatch": "LoadFromCheckpoint"})
    second = await bound(rig, b)
    own = await asyncio.to_thread(seed, b, second, OTHER, OTHER_DATA)
    assert own.identity == digest_of(OTHER)
    third = await bound(rig, c)

    async def learned() -> bool:
        return await asyncio.to_thread(identities, c) == {digest_of(OTHER): "sealed"}

    await eventually("the third node cloned what the second asked for, before its engine ran", learned, 40)
    assert await asyncio.to_thread(taken, c, third, OTHER) == OTHER_DATA

    async def told() -> bool:
        notes = dict(await rig.events("m"))
        return "version.sglang: engine '0.5.24', arena" in notes.get("IdentityMismatch", "")

    await eventually("an Event names the field", told)

    async def listed() -> bool:
        found = {each.get("identity") for each in (await rig.status("m"))["identities"]}
        return bool(found == {digest_of(IDENTITY), digest_of(OTHER)})

    await eventually("the status lists both", listed)
    assert await asyncio.to_thread(identities, a) == {digest_of(IDENTITY): "sealed"}


async def test_a_template_that_changes_nothing_clones_and_one_that_does_is_refused(rig: Rig, nodes: list[Node]) -> None:
    a, b, c = nodes
    await started(rig, a, replicas=3)
    changed = model_replica()["spec"]["template"]
    changed["spec"]["containers"][0]["args"] = ["--port", "30000", "--log-level", "error"]
    before = int((await rig.deployment("m"))["metadata"]["generation"])
    await rig.merge(rig.path("m"), {"spec": {"template": changed}})

    async def applied() -> bool:
        return int((await rig.deployment("m"))["metadata"]["generation"]) > before

    await eventually("the Deployment has the new template", applied)
    second = await bound(rig, b)
    assert await asyncio.to_thread(taken, b, second, IDENTITY) == DATA
    assert (await asyncio.to_thread(b.observed)).arenas[0].way == "clone"
    third = await bound(rig, c)
    text = await asyncio.to_thread(refused, c, third, OTHER)
    assert "version.sglang: engine '0.5.24', arena" in text
    assert "transfer.onMismatch of the ModelReplica is Fail" in text

    async def degraded() -> bool:
        condition = await rig.condition("m", "Degraded")
        return bool(condition["reason"] == "IdentityMismatch" and "0.5.24" in condition["message"])

    await eventually("the condition says why", degraded)
    assert [reason for reason, _ in await rig.events("m")].count("SeedElected") == 1
