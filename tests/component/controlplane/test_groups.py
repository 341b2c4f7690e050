"""Replicas of several pods: what the operator makes of them on a real API server, scales, restarts and counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.component.controlplane.apiserver import ApiError
from tests.component.controlplane.rig import Rig, eventually
from tests.component.controlplane.test_crd import model_replica

pytestmark = pytest.mark.apiserver

Object = dict[str, Any]
PAIRS: Object = {"replicas": 2, "group": {"size": 2}, "parallelism": {"tensor": 2}}


def folder(rig: Rig, plural: str) -> str:
    group = {"statefulsets": "apis/apps/v1", "poddisruptionbudgets": "apis/policy/v1"}.get(plural, "api/v1")
    return f"/{group}/namespaces/{rig.namespace}/{plural}"


async def names(rig: Rig, plural: str) -> list[str]:
    return sorted(item["metadata"]["name"] for item in (await rig.call("GET", folder(rig, plural)))["items"])


async def expect(rig: Rig, plural: str, wanted: list[str]) -> None:
    async def there() -> bool:
        found = [n for n in await names(rig, plural) if n != "kubernetes"]
        assert found == wanted
        return True

    await eventually(f"{plural} are {wanted}", there)


async def least(rig: Rig) -> int:
    got = await rig.call("GET", f"{folder(rig, 'poddisruptionbudgets')}/m")
    return int(got["spec"]["minAvailable"])


async def counted(rig: Rig, replicas: int, ready: int) -> Object:
    async def so() -> Object:
        status = await rig.status("m")
        assert (status["replicas"], status["readyReplicas"]) == (replicas, ready), status
        return status

    return await eventually(f"{ready} of {replicas} groups are ready", so)


async def test_groups_are_made_seeded_cloned_counted_and_scaled(rig: Rig) -> None:
    agents = [await rig.node(n) for n in (1, 2, 3, 4)]
    await rig.call("POST", rig.path(""), model_replica(**PAIRS))
    await expect(rig, "statefulsets", ["m-0", "m-1"])
    await expect(rig, "services", ["m-0", "m-1"])
    await expect(rig, "poddisruptionbudgets", ["m"])
    assert await least(rig) == 2
    first = await rig.group("m-0", *agents[:2])

    async def sealed(number: int, rank: str, way: str) -> bool:
        arenas = list(agents[number].arenas.values())
        return [(str(a.place), a.state, a.way) for a in arenas] == [(rank, "sealed", way)]

    for number, rank in enumerate(("tp0", "tp1")):
        await eventually(f"{rank} is seeded by its own pod", lambda n=number, r=rank: sealed(n, r, "seed"))  # type: ignore[misc]
    second = await rig.group("m-1", *agents[2:])
    for number, rank in ((2, "tp0"), (3, "tp1")):
        await eventually(f"{rank} is cloned", lambda n=number, r=rank: sealed(n, r, "clone"))  # type: ignore[misc]
    for pod in (*first, second[0]):
        await rig.set_ready(pod)
    await counted(rig, 2, 1)
    await rig.set_ready(second[1])
    status = await counted(rig, 2, 2)
    assert status["selector"] == "flashboot.io/model-replica=m,apps.kubernetes.io/pod-index=0"
    assert (await rig.condition("m", "Ready"))["status"] == "True"

    await rig.merge(rig.path("m", "scale"), {"spec": {"replicas": 1}})
    await expect(rig, "statefulsets", ["m-0"])

    async def lowered() -> bool:
        return await least(rig) == 0

    await eventually("the budget follows", lowered)

    async def told() -> bool:
        return ("GroupRemoved", "replica m-1 goes: there are more than wanted") in await rig.events("m")

    await eventually("an Event tells it", told)


async def test_a_group_restarts_as_a_whole_and_once(rig: Rig) -> None:
    agents = [await rig.node(n) for n in (1, 2)]
    await rig.call("POST", rig.path(""), model_replica(**PAIRS | {"replicas": 1}))
    pods = await rig.group("m-0", *agents)
    for pod in pods:
        await rig.set_ready(pod)
    await counted(rig, 1, 1)
    set_path = f"{folder(rig, 'statefulsets')}/m-0"

    async def noted() -> str:
        return str((await rig.call("GET", set_path))["metadata"]["annotations"]["flashboot.io/together"])

    note = await eventually("who is together is noted", noted)
    assert sorted(part.split("/")[0] for part in note.split(",")) == sorted(p["metadata"]["uid"] for p in pods)

    paths = [f"{folder(rig, 'pods')}/{pod['metadata']['name']}" for pod in pods]
    restarted = {"name": "engine", "restartCount": 1, "image": "i", "imageID": "i", "ready": False}
    await rig.merge(f"{paths[1]}/status", {"status": {"containerStatuses": [restarted]}})

    async def deleted() -> bool:
        return "deletionTimestamp" in (await rig.call("GET", paths[0]))["metadata"]

    await eventually("the other pod is deleted", deleted)
    assert "deletionTimestamp" not in (await rig.call("GET", paths[1]))["metadata"]
    await rig.delete_pod(pods[0])
    again = await rig.member(await rig.call("GET", set_path), 0, agents[0])
    await rig.set_ready(again)
    await counted(rig, 1, 1)

    async def noted_anew() -> bool:
        return again["metadata"]["uid"] in await noted() and pods[1]["metadata"]["uid"] + "/1" in await noted()

    await eventually("the new meeting is noted", noted_anew)
    told = [note for reason, note in await rig.events("m") if reason == "GroupRestarted"]
    assert told == [
        "replica m-0: the engine of pod m-0-1 ended; deleted m-0-0, so that the engines of the group meet anew"
    ]
    for path in paths:
        assert "deletionTimestamp" not in (await rig.call("GET", path))["metadata"]


async def test_another_template_is_another_group_inside_the_limits(rig: Rig) -> None:
    agents = [await rig.node(n) for n in (1, 2, 3, 4)]
    await rig.call("POST", rig.path(""), model_replica(**PAIRS | {"replicas": 1}))
    for pod in await rig.group("m-0", *agents[:2]):
        await rig.set_ready(pod)
    await counted(rig, 1, 1)
    container = {"name": "engine", "image": "sglang:y", "args": ["--port", "30000"]}
    await rig.merge(rig.path("m"), {"spec": {"template": {"spec": {"containers": [container]}}}})
    await expect(rig, "statefulsets", ["m-0", "m-1"])
    for pod in await rig.group("m-1", *agents[2:]):
        await rig.set_ready(pod)
    await expect(rig, "statefulsets", ["m-1"])


async def test_no_group_goes_for_a_template_that_is_rejected(rig: Rig) -> None:
    """Though one may be missing meanwhile."""
    agents = [await rig.node(n) for n in (1, 2)]
    rollout = {"maxSurge": 0, "maxUnavailable": 1}
    await rig.call("POST", rig.path(""), model_replica(**PAIRS | {"replicas": 1, "rollout": rollout}))
    for pod in await rig.group("m-0", *agents):
        await rig.set_ready(pod)
    await counted(rig, 1, 1)
    container = {"name": "engine", "image": "y", "args": ["--port", "30000"], "imagePullPolicy": "Sometimes"}
    await rig.merge(rig.path("m"), {"spec": {"template": {"spec": {"containers": [container]}}}})

    async def stalled() -> bool:
        condition = await rig.condition("m", "Stalled")
        assert condition["reason"] == "TemplateRejected", condition
        return "imagePullPolicy" in condition["message"]

    await eventually("the field is named", stalled)
    assert await names(rig, "statefulsets") == ["m-0"]
    await counted(rig, 1, 1)
    await rig.merge(rig.path("m"), {"spec": {"replicas": 0}})
    await expect(rig, "statefulsets", [])


async def test_what_somebody_changes_or_removes_is_put_right(rig: Rig) -> None:
    await rig.call("POST", rig.path(""), model_replica(**PAIRS | {"replicas": 1}))
    await expect(rig, "services", ["m-0"])
    await expect(rig, "poddisruptionbudgets", ["m"])
    await rig.call("DELETE", f"{folder(rig, 'services')}/m-0")
    await rig.call("DELETE", f"{folder(rig, 'poddisruptionbudgets')}/m")
    await rig.merge(f"{folder(rig, 'statefulsets')}/m-0", {"spec": {"replicas": 5}})
    await expect(rig, "services", ["m-0"])
    await expect(rig, "poddisruptionbudgets", ["m"])

    async def restored() -> bool:
        return bool((await rig.call("GET", f"{folder(rig, 'statefulsets')}/m-0"))["spec"]["replicas"] == 2)

    await eventually("the StatefulSet is as it was", restored)


async def test_a_stateful_set_of_somebody_else_is_left_alone(rig: Rig) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    labels = {"flashboot.io/model-replica": "m"}
    theirs = {
        "metadata": {"name": "m-0", "labels": labels},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "serviceName": "x", "template": template},
    }
    await rig.call("POST", folder(rig, "statefulsets"), theirs)
    await rig.call("POST", rig.path(""), model_replica(**PAIRS | {"replicas": 1}))
    await expect(rig, "statefulsets", ["m-0", "m-1"])
    got = await rig.call("GET", f"{folder(rig, 'statefulsets')}/m-0")
    assert got["spec"]["serviceName"] == "x"
    with pytest.raises(ApiError, match="not found"):
        await rig.call("GET", f"{folder(rig, 'services')}/m-0")
