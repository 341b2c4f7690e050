"""What is done about groups, against an API server that only takes note."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, cast

from flashboot_operator.core.design import Design
from flashboot_operator.core.facts import World
from flashboot_operator.core.plan import Owner
from flashboot_operator.kube.client import Kube
from flashboot_operator.reconcile.apply import Applier, Outcome, metadata_of
from flashboot_operator.reconcile.groups import Groups
from flashboot_operator.reconcile.mirror import Mirror
from tests.unit.operatorkit import NOW, TEMPLATE, owner, pod, uid, world

KEY = ("ns", "m")
Object = dict[str, Any]


class Notes:
    """Of each call what it was about."""

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.deleted: list[str] = []

    async def apply(self, path: str, body: Object, **_: Any) -> Object:
        self.applied.append(path.rsplit("/", 2)[1] + "/" + path.rsplit("/", 1)[1])
        return {"metadata": {"uid": "0" * 8, "generation": 1}}

    async def delete(self, path: str, **_: Any) -> Object:
        self.deleted.append(path.rsplit("/", 1)[1])
        return {}


@dataclass
class _Known:
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)


class Nothing:
    """A mirror that has seen no object of ours."""

    sets = services = _Known()

    def sets_of(self, key: tuple[str, str]) -> list[Object]:
        return []


async def ensured(who: Owner, facts: World) -> tuple[Notes, Outcome]:
    kube = Notes()
    groups = Groups(cast(Kube, kube), Applier(cast(Kube, kube)))
    design = Design(metadata_of(*KEY, who.uid), who.spec)
    outcome, _ = await groups.ensure(KEY, who, facts, [], cast(Mirror, Nothing()), design=design)
    return kube, outcome


async def test_a_group_restarts_as_a_whole_also_while_another_template_is_refused() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["args"] += ["--nnodes", "2"]
    who = owner(group={"size": 2}, parallelism={"tensor": 2}, template=template)
    meta = {"uid": "5" * 8, "name": "m-0", "namespace": "ns", "creationTimestamp": NOW.isoformat()}
    set_ = {"metadata": {**meta, "annotations": {"flashboot.io/together": f"{uid('a')}/0,{uid('b')}/0"}}}
    pods = [pod("a", "n1", replica="m-0", restarts=1), pod("b", "n2", replica="m-0", index=1)]
    kube, outcome = await ensured(who, world(pods, [], sets={"m-0": set_}))
    assert outcome.trouble is not None
    assert outcome.trouble.reason == "TemplateRejected"
    assert kube.deleted == ["b"]


async def test_a_large_step_is_made_in_pieces() -> None:
    kube, outcome = await ensured(owner(group={"size": 2}, parallelism={"tensor": 2}, replicas=4096), world([], []))
    assert outcome.trouble is None
    assert 0 < len(kube.applied) <= 32
    assert "statefulsets/m-0" in kube.applied
