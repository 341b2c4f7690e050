"""One ModelReplica of which the operator can make nothing must not hold up the others, nor be left without a word."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.agents.wishes import Wish
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.facts import Agent
from flashboot_operator.core.plan import Decision
from flashboot_operator.kube.client import Kube
from flashboot_operator.kube.events import Recorder
from flashboot_operator.reconcile.controller import Controller
from flashboot_operator.reconcile.metrics import Metrics
from flashboot_operator.reconcile.mirror import Mirror
from flashboot_operator.reconcile.objects import Objects
from tests.unit.operatorkit import OWNER_UID, TEMPLATE, agent, arena, owner, world

KEY = ("ns", "m")
Object = dict[str, Any]


class FakeKube:
    def __init__(self) -> None:
        self.applied: list[Object] = []

    async def apply(self, path: str, body: Object, **_: Any) -> Object:
        self.applied.append(body)
        return model_replica() | {"status": body.get("status")}


class FakeFleet:
    def __init__(self) -> None:
        self.looked_at: list[tuple[str, str]] = []
        self.wishes: list[Wish] = []
        self.heard: dict[str, Agent] = {}

    def agents(self) -> dict[str, Agent]:
        return self.heard

    def want(self, key: tuple[str, str], wish: Wish, sequence: int) -> None:
        self.wishes.append(wish)
        self.looked(key, sequence)

    def sequence(self) -> int:
        return 0

    def looked(self, key: tuple[str, str], sequence: int) -> None:
        self.looked_at.append(key)


def model_replica(**container: Any) -> Object:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0] |= container
    meta = {"namespace": "ns", "name": "m", "uid": OWNER_UID, "generation": 1, "resourceVersion": "7"}
    return {"metadata": meta, "spec": {"model": {"name": "org/m", "revision": "r1"}, "template": template}}


def controller(obj: Object) -> tuple[Controller, FakeKube, FakeFleet]:
    fake, fleet = FakeKube(), FakeFleet()
    kube = cast(Kube, fake)
    objects = Objects(kube)
    objects.show(obj)
    made = Controller(kube, objects, Recorder(kube, instance="t"), Metrics(), writes_per_second=10)
    made.fleet = cast(Fleet, fleet)
    return made, fake, fleet


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", {"A": "B"}),
        ("env", ["A=B"]),
        ("resources", {"limits": ["nvidia.com/gpu"]}),
        ("volumeMounts", {"mountPath": "/x"}),
        ("lifecycle", {"preStop": {"sleep": {"seconds": None}}}),
    ],
)
async def test_a_template_of_another_shape_than_a_pods_is_told_and_holds_up_nobody(field: str, value: Any) -> None:
    made, kube, fleet = controller(model_replica(**{field: value}))
    await made.look(KEY)
    assert fleet.looked_at == [KEY]
    await made.upkeep.keep(KEY)
    said = {c["type"]: c for c in kube.applied[-1]["status"]["conditions"]}
    assert said["Stalled"]["reason"] == "TemplateRejected"
    assert f"spec.template.spec.containers.0.{field}" in said["Ready"]["message"]


async def test_a_spec_that_cannot_be_read_at_the_start_drops_nothing() -> None:
    """A new operator knows of it only what the nodes hold: they keep that, as often as it is looked at."""
    made, _, fleet = controller(model_replica(env={"A": "B"}))
    await made.look(KEY)
    assert fleet.wishes[-1] == Wish()
    fleet.heard = {"n1": agent("n1", arenas=[arena()])}
    await made.look(KEY)
    [wanted] = fleet.wishes[-1].arenas["n1"]
    assert (wanted.arena, wanted.role) == (arena().arena, "hold")


async def test_a_spec_that_cannot_be_read_any_more_leaves_what_was_wanted() -> None:
    made, _, fleet = controller(model_replica(env={"A": "B"}))
    made.decisions[KEY] = Decision(owner(), world([], []), [], generation=1)
    await made.look(KEY)
    assert (fleet.looked_at, fleet.wishes) == ([KEY], [])


async def test_a_fault_of_ours_about_one_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, fleet = controller(model_replica())
    made.mirror = cast(Mirror, object())
    with pytest.raises(AttributeError):
        await made.look(KEY)
    assert fleet.looked_at == [KEY]


@pytest.mark.parametrize(
    "more",
    [
        {"env": [{"name": "A", "value": "B"}], "resources": {"limits": {"nvidia.com/gpu": 1}}, "volumeMounts": None},
        {"env": None, "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}, "ports": [{"containerPort": 1}]},
    ],
)
def test_what_a_pod_may_have_is_taken(more: Object) -> None:
    Spec.model_validate(model_replica(**more)["spec"])
