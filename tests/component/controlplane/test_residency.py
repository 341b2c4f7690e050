"""Scale to zero and back with copies that stay, over a restart of the operator and until their time is over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_operator import create, sealed, seeded

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]


async def test_copies_outlive_the_pods_and_the_operator_and_go_when_their_time_is_over(rig: Rig) -> None:
    a, b, c = [await rig.node(n) for n in (1, 2, 3)]
    await create(rig, replicas=3, residency={"hostCopies": 2, "hostTTLSeconds": 600})
    pods = [await seeded(rig, a)]
    for agent in (b, c):
        pods.append(await rig.pod("m", agent))
        await sealed(agent)

    async def unused() -> Object:
        found = (await rig.status("m"))["residency"]
        assert found["copies"] == 2, found
        assert found["until"], found
        return dict(found)

    await rig.merge(rig.path("m"), {"spec": {"replicas": 0}})
    for pod in pods:
        await rig.delete_pod(pod)
    said = await eventually("the status says who keeps copies until when", unused)
    holders = {agent.node for agent in (a, b, c) if agent.arenas}
    assert holders == set(said["nodes"])
    ready = await rig.condition("m", "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
    assert said["until"] in ready["message"]
    for node in holders:
        assert node in ready["message"]
    assert sorted(agent.wanted().eviction for agent in (a, b, c) if agent.wanted()) == ["last", "spare"]  # type: ignore[union-attr]

    rig.operator.kill()
    rig.operator.start()
    await rig.operator.ready()
    writes = (await rig.call("GET", rig.path("m")))["metadata"]["resourceVersion"]
    assert await eventually("the new operator has looked", unused) == said, "it counts on, it does not begin anew"

    empty = next(agent for agent in (a, b, c) if not agent.arenas)
    assert (await rig.call("GET", rig.path("m")))["metadata"]["resourceVersion"] == writes
    await rig.merge(rig.path("m", "scale"), {"spec": {"replicas": 1}})
    back = await rig.pod("m", empty)
    await sealed(empty)
    assert empty.only().way == "clone"  # type: ignore[union-attr]
    await rig.set_ready(back)

    async def used() -> bool:
        return "unusedSince" not in (await rig.status("m"))["residency"]

    await eventually("there is a pod again, and no end", used)
    seeds = [note for reason, note in await rig.events("m") if reason == "SeedElected"]
    assert len(seeds) == 1, "nothing was loaded again"

    await rig.merge(rig.path("m"), {"spec": {"replicas": 0, "residency": {"hostTTLSeconds": 2}}})
    await rig.delete_pod(back)

    async def over() -> bool:
        source = await rig.condition("m", "SourceAvailable")
        assert (source["status"], source["reason"]) == ("False", "CopiesExpired"), source
        return not any(agent.arenas for agent in (a, b, c))

    await eventually("their time is over, nothing is held", over)

    async def told() -> bool:
        return any(reason == "CopiesExpired" for reason, _ in await rig.events("m"))

    await eventually("an Event tells it", told)
