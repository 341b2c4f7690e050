"""The Deployment: what is added, what is refused, and that scaling leaves the template alone."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from flashboot_operator.core.workload import TemplateRefused, deployment
from tests.unit.operatorkit import HASH, TEMPLATE, spec

META = {"name": "m", "namespace": "ns", "uid": "u-1"}


def with_engine(**more: Any) -> dict[str, Any]:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0] |= more
    return template


def test_what_is_added() -> None:
    template = {
        "metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}},
        "spec": {
            "containers": [{"name": "sidecar", "image": "s"}, {"name": "engine", "image": "e", "command": ["serve"]}]
        },
    }
    made = deployment(META, spec(template=template, transfer={"cloneTimeoutSeconds": 90}))["spec"]["template"]
    assert made["metadata"]["labels"] == {"app": "x", "flashboot.io/model-replica": "m", "flashboot.io/leader": "true"}
    assert made["metadata"]["annotations"]["a"] == "b"
    sidecar, engine = made["spec"]["containers"]
    assert sidecar == {"name": "sidecar", "image": "s"}
    assert engine["volumeMounts"] == [{"name": "flashboot", "mountPath": "/flashboot", "readOnly": True}]
    assert engine["args"][:3] == ["--load-format", "private", "--model-loader-extra-config"]
    assert json.loads(engine["args"][3]) == {
        "flashboot": {"model": "org/m", "revision": "r1", "onMismatch": "Fail", "cloneTimeoutSeconds": 90}
    }
    assert made["spec"]["volumes"] == [
        {
            "name": "flashboot",
            "csi": {
                "driver": "csi.flashboot.io",
                "readOnly": True,
                "volumeAttributes": {"flashboot.io/model-replica": "m"},
            },
        }
    ]


def test_the_probe_follows_the_port_and_a_given_probe_stays() -> None:
    engine = deployment(META, spec())["spec"]["template"]["spec"]["containers"][0]
    assert engine["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 31000}
    for argv, port in ((["--port=8000"], 8000), (["--model-path", "x"], 30000)):
        engine = deployment(META, spec(template=with_engine(args=argv)))["spec"]["template"]["spec"]["containers"][0]
        assert engine["readinessProbe"]["httpGet"]["port"] == port
    probe = {"exec": {"command": ["true"]}}
    given = deployment(META, spec(template=with_engine(readinessProbe=probe)))["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert given["readinessProbe"] == probe


def test_the_users_template_is_not_touched_and_hashes_without_what_is_added() -> None:
    before = copy.deepcopy(TEMPLATE)
    made = deployment(META, spec())
    assert before == TEMPLATE
    assert made["spec"]["template"]["metadata"]["annotations"]["flashboot.io/engine-hash"] == HASH


def test_scaling_changes_only_the_number() -> None:
    one, four = deployment(META, spec(replicas=1)), deployment(META, spec(replicas=4))
    assert (one["spec"].pop("replicas"), four["spec"].pop("replicas")) == (1, 4)
    assert one == four


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (with_engine(args=[]), "neither command nor args"),
        (with_engine(args=["--load-format", "auto"]), "--load-format"),
        (with_engine(args=["--model-loader-extra-config={}"]), "--model-loader-extra-config"),
        (with_engine(volumeMounts=[{"name": "x", "mountPath": "/flashboot/"}]), "volumeMounts"),
        (
            {"spec": {**TEMPLATE["spec"], "volumes": [{"name": "flashboot", "emptyDir": {}}]}},
            "spec.template.spec.volumes",
        ),
    ],
)
def test_a_template_that_leaves_no_room_is_refused(template: dict[str, Any], field: str) -> None:
    with pytest.raises(TemplateRefused, match=field):
        deployment(META, spec(template=template))
