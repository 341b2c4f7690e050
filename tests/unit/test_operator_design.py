"""What is applied is made once for each template, not at each look."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from flashboot_operator.core import design as designs
from flashboot_operator.core.design import Design
from flashboot_operator.core.groupset import stateful_set, template_digest
from flashboot_operator.core.workload import deployment
from flashboot_operator.reconcile.owners import Owners
from tests.unit.operatorkit import HASH, OWNER_UID, TEMPLATE, spec

META = {"name": "m", "namespace": "ns", "uid": OWNER_UID}
TWO: dict[str, Any] = {"group": {"size": 2}, "parallelism": {"tensor": 2}}
KEY = ("ns", "m")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of the costly makers ran."""
    count: Counter[str] = Counter()
    for maker in ("pod_template", "template_digest", "stateful_set"):
        real = getattr(designs, maker)

        def counting(*args: Any, _real: Any = real, _name: str = maker) -> Any:
            count[_name] += 1
            return _real(*args)

        monkeypatch.setattr(designs, maker, counting)
    return count


def model_replica(generation: int = 1, **fields: Any) -> dict[str, Any]:
    body = {"replicas": 1, "model": {"name": "org/m", "revision": "r1"}, "template": copy.deepcopy(TEMPLATE)} | fields
    return {"metadata": {**META, "generation": generation}, "spec": body}


def test_it_is_what_the_makers_make() -> None:
    single, groups = Design(META, spec()), Design(META, spec(**TWO))
    assert single.deployment(spec(replicas=3)) == deployment(META, spec(replicas=3))
    assert groups.stateful_set("m-1") == stateful_set(META, spec(**TWO), "m-1")
    assert groups.digest == template_digest(META, spec(**TWO))


def test_a_look_makes_nothing_anew(made: Counter[str]) -> None:
    owners = Owners()
    for look in range(5):
        owner = owners.of(KEY, model_replica(replicas=look, **TWO))
        design = owners.design(KEY)
        assert design is not None
        assert owner.spec.replicas == look
        assert [design.stateful_set(f"m-{number}")["metadata"]["name"] for number in (0, 1)] == ["m-0", "m-1"]
    assert made == {"template_digest": 1, "stateful_set": 2}


def test_another_template_or_another_object_is_made_anew(made: Counter[str]) -> None:
    owners = Owners()
    first = owners.of(KEY, model_replica())
    assert owners.of(KEY, model_replica(generation=9)) is first
    assert (first.template_hash, first.template_refused) == (HASH, False)
    other = model_replica(model={"name": "org/m", "revision": "r2"})
    assert owners.of(KEY, other).template_hash != HASH
    again = model_replica()
    again["metadata"]["uid"] = "other"
    assert owners.of(KEY, again).uid == "other"
    assert made["pod_template"] == 3
    again["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
    assert owners.of(KEY, again).going


def test_a_refused_template_is_known_at_once_and_a_spec_that_cannot_be_read_is_none() -> None:
    owners, bad = Owners(), model_replica()
    bad["spec"]["template"]["spec"]["containers"][0]["args"] = ["--load-format", "auto"]
    assert owners.of(KEY, bad).template_refused
    assert (design := owners.design(KEY)) is not None
    assert design.refused is not None
    assert design.refused.reason == "TemplateRejected"
    with pytest.raises(ValidationError):
        owners.of(KEY, model_replica(replicas=-1))
    adopting = model_replica(replicas=None, template=None)
    assert not owners.of(KEY, adopting).template_refused
    assert owners.design(KEY) is None
