"""Another revision, there and back: operator, API server and agents are real; engines and the Deployment's controller
are played."""

from __future__ import annotations

import asyncio
import random
import shutil

import pytest

from flashboot_agent.core.identity import digest_of
from flashboot_agent.wire import attach
from tests.component.agents import IDENTITY, MIB, Node, layout_for
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_mismatch import identities, started, taken
from tests.component.controlplane.test_with_real_agents import DATA, Object, bound, nodes

pytestmark = pytest.mark.apiserver
__all__ = ["nodes"]

NEXT = {**IDENTITY, "revision": "r2"}
NEXT_DATA = random.Random(9).randbytes(2 * MIB)


def seeded_or_attached(node: Node, pod: Object) -> tuple[str, bytes]:
    """An engine of the next revision, whatever its agent tells it to do."""
    with node.engine(pod["metadata"]["uid"], identity=NEXT) as engine:
        while True:
            message, fds = engine.receive()
            if isinstance(message, attach.Coming):
                continue
            if isinstance(message, attach.Seed):
                break
            assert isinstance(message, attach.Ready), message
            return "attached", engine.read(message, fds)
        engine.fill(NEXT_DATA)
        engine.commit(layout_for(len(NEXT_DATA), NEXT))
        return "seeded", engine.attach()[1]


async def removed(rig: Rig, node: Node, pod: Object) -> None:
    """As kubelet and the door do when a pod is deleted."""
    await rig.delete_pod(pod)
    (node.run / "meta" / f"{pod['metadata']['uid']}.json").unlink()
    shutil.rmtree(node.run / "pods" / pod["metadata"]["uid"])


async def change(rig: Rig, revision: str) -> Object:
    """Name another revision; returns the template that the Deployment then has."""
    before = int((await rig.deployment("m"))["metadata"]["generation"])
    await rig.merge(rig.path("m"), {"spec": {"model": {"revision": revision}}})

    async def applied() -> bool:
        return int((await rig.deployment("m"))["metadata"]["generation"]) > before

    await eventually("the Deployment has another template", applied)
    template: Object = (await rig.deployment("m"))["spec"]["template"]
    return template


async def holds(node: Node, wanted: dict[str | None, str]) -> None:
    async def check() -> bool:
        return await asyncio.to_thread(identities, node) == wanted

    await eventually(f"{node.name} holds {wanted}", check, 40)


async def seeds(rig: Rig) -> int:
    return [reason for reason, _ in await rig.events("m")].count("SeedSealed")


async def test_one_seeds_the_other_clones_and_the_way_back_loads_nothing(rig: Rig, nodes: list[Node]) -> None:
    a, b, c = nodes
    old, new = digest_of(IDENTITY), digest_of(NEXT)
    first = await started(rig, a, replicas=2, rollout={"maxSurge": 2})
    template = (await rig.deployment("m"))["spec"]["template"]
    assert await change(rig, "another") != template

    surge = [(b, await bound(rig, b)), (c, await bound(rig, c))]
    did = await asyncio.gather(*(asyncio.to_thread(seeded_or_attached, node, pod) for node, pod in surge))
    assert sorted(word for word, _ in did) == ["attached", "seeded"], "exactly one loads the checkpoint"
    assert {data for _, data in did} == {NEXT_DATA}
    await holds(a, {old: "sealed"})
    assert await seeds(rig) == 2

    async def rolling() -> bool:
        condition = await rig.condition("m", "Reconciling")
        return condition["reason"] == "RollingOut" and "2 of 3 are of the present template" in condition["message"]

    await eventually("the condition counts both", rolling)

    assert await change(rig, "abc") == template, "the earlier revision is the very same template"
    back = await bound(rig, b)
    assert await asyncio.to_thread(taken, b, back, IDENTITY) == DATA
    await holds(b, {old: "sealed", new: "sealed"})
    assert await seeds(rig) == 2, "nothing was loaded again"

    for node, pod in surge:
        await removed(rig, node, pod)
    await holds(b, {old: "sealed"})
    await holds(c, {})
    await holds(a, {old: "sealed"})
    await removed(rig, a, first)
