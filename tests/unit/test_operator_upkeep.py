"""What nodes are told waits for no answer of the API server; what is written there rests on the newest decision."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.agents.wishes import Wish
from flashboot_operator.kube.client import Kube, NotFound, Unavailable
from flashboot_operator.kube.events import Recorder
from flashboot_operator.reconcile import upkeep
from flashboot_operator.reconcile.controller import Controller
from flashboot_operator.reconcile.metrics import Metrics
from flashboot_operator.reconcile.mirror import Mirror
from flashboot_operator.reconcile.objects import Objects
from tests.unit.operatorkit import OWNER_UID, TEMPLATE

KEY = ("ns", "m")
Object = dict[str, Any]


def model_replica(**meta: Any) -> Object:
    made = {"namespace": "ns", "name": "m", "uid": OWNER_UID, "generation": 1, "resourceVersion": "7"} | meta
    return {
        "metadata": made,
        "spec": {"replicas": 1, "model": {"name": "org/m", "revision": "r1"}, "template": TEMPLATE},
    }


class FakeKube:
    """Takes everything, once it may answer."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.called = asyncio.Event()
        self.asked: list[str] = []
        self.applied: list[Object] = []
        self.refuses: Exception | None = None

    async def apply(self, path: str, body: Object, **_: Any) -> Object:
        self.applied.append(body)
        self.called.set()
        await self.open.wait()
        if self.refuses is not None:
            raise self.refuses
        return model_replica(resourceVersion=f"{7 + len(self.applied)}") | {"status": body.get("status")}

    async def get(self, path: str, **_: Any) -> Object:
        self.asked.append(path)
        raise NotFound(404, "NotFound", "")


class FakeFleet:
    def __init__(self) -> None:
        self.wanted: list[Wish] = []

    def sequence(self) -> int:
        return 0

    def looked(self, key: tuple[str, str], sequence: int) -> None: ...

    def want(self, key: tuple[str, str], wish: Wish, sequence: int) -> None:
        self.wanted.append(wish)

    def agents(self) -> Object:
        return {}

    def silent(self, nodes: set[str]) -> dict[str, float]:
        return {}

    def skewed(self, nodes: set[str]) -> dict[str, str]:
        return {}


class Rig:
    def __init__(self) -> None:
        self.kube, self.fleet = FakeKube(), FakeFleet()
        kube = cast(Kube, self.kube)
        self.objects = Objects(kube)
        self.objects.show(model_replica())
        made = Controller(kube, self.objects, Recorder(kube, instance="t"), Metrics(), writes_per_second=100)
        made.fleet = cast(Fleet, self.fleet)
        made.mirror = made.upkeep.mirror = Mirror(
            kube, namespace="s", mark=made.queue.mark, mark_all=made.mark_all, endpoints=lambda _: None
        )
        self.controller = made

    @property
    def kinds(self) -> list[str]:
        return [body["kind"] for body in self.kube.applied]


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_a_look_waits_for_no_answer_of_the_api_server(rig: Rig) -> None:
    rig.kube.open.clear()
    await rig.controller.look(KEY)
    writing = asyncio.create_task(rig.controller.upkeep.keep(KEY))
    await rig.kube.called.wait()
    await rig.controller.look(KEY)
    assert len(rig.fleet.wanted) == 2
    assert rig.kube.asked == []
    rig.kube.open.set()
    await writing
    assert rig.kinds == ["ModelReplica", "Deployment", "PodDisruptionBudget", "ModelReplica"]


async def test_what_is_written_is_decided_anew_where_a_look_is_due_or_was_long_ago(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.controller.look(KEY)
    await rig.controller.upkeep.keep(KEY)
    assert len(rig.fleet.wanted) == 1
    rig.controller.queue.mark(KEY, after_s=5.0)
    await rig.controller.upkeep.keep(KEY)
    assert len(rig.fleet.wanted) == 1
    rig.controller.queue.mark(KEY)
    await rig.controller.upkeep.keep(KEY)
    assert len(rig.fleet.wanted) == 2
    await rig.controller.look(KEY)
    monkeypatch.setattr(upkeep, "FRESH_S", -1.0)
    await rig.controller.upkeep.keep(KEY)
    assert len(rig.fleet.wanted) == 4


async def test_an_object_that_changed_since_is_looked_at_before_anything_is_written(rig: Rig) -> None:
    await rig.controller.look(KEY)
    rig.objects.show(model_replica(generation=2, resourceVersion="8"))
    await rig.controller.upkeep.keep(KEY)
    assert rig.kube.applied == []
    assert rig.controller.queue.is_due(KEY)


async def test_one_that_is_gone_is_asked_for_once_and_forgotten(rig: Rig) -> None:
    await rig.controller.look(KEY)
    rig.kube.refuses = NotFound(404, "NotFound", "")
    with pytest.raises(NotFound):
        await rig.controller.upkeep.keep(KEY)
    assert rig.controller.queue.is_due(KEY)
    await rig.controller.look(KEY)
    assert rig.kube.asked == ["/apis/flashboot.io/v1alpha1/namespaces/ns/modelreplicas/m"]
    assert rig.fleet.wanted[-1] == Wish()
    for _ in range(3):
        await rig.controller.upkeep.keep(KEY)
    assert len(rig.kube.asked) == 1
    assert rig.controller.decisions == {}


async def test_a_write_that_fails_is_told_to_the_queue(rig: Rig) -> None:
    await rig.controller.look(KEY)
    rig.kube.refuses = Unavailable(503, "Unavailable", "")
    with pytest.raises(Unavailable):
        await rig.controller.upkeep.keep(KEY)


async def test_a_status_is_not_written_twice(rig: Rig) -> None:
    for _ in range(3):
        await rig.controller.look(KEY)
        await rig.controller.upkeep.keep(KEY)
    assert rig.kinds.count("ModelReplica") == 2  # at first sight, and the status
