"""examples/keda.yaml against what KEDA takes: the fields of its ScaledObject (keda.sh/v1alpha1, of KEDA 2.16) that
matter here, and the parameters of its `prometheus` trigger. KEDA itself was never run with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "keda.yaml"
POLICY = {"type": str, "value": int, "periodSeconds": int}
RULES = {"stabilizationWindowSeconds": int, "selectPolicy": str, "policies": [POLICY]}
SPEC: dict[str, Any] = {
    "scaleTargetRef": {"apiVersion": str, "kind": str, "name": str, "envSourceContainerName": str},
    "pollingInterval": int,
    "initialCooldownPeriod": int,
    "cooldownPeriod": int,
    "idleReplicaCount": int,
    "minReplicaCount": int,
    "maxReplicaCount": int,
    "advanced": {
        "horizontalPodAutoscalerConfig": {"name": str, "behavior": {"scaleUp": RULES, "scaleDown": RULES}},
        "restoreToOriginalReplicaCount": bool,
    },
    "triggers": [
        {"type": str, "name": str, "metricType": str, "useCachedMetrics": bool, "metadata": {"*": str}},
    ],
}
"""Field → type; a list has its items' type, `*` stands for any name. What KEDA has beside is left out."""
NEEDED = {"": {"scaleTargetRef", "triggers"}, "scaleTargetRef": {"name"}, "triggers": {"type", "metadata"}}
PROMETHEUS = {"serverAddress": True, "query": True, "threshold": True, "activationThreshold": False}
"""Parameter of the trigger → whether it needs it."""


def odd(value: Any, wanted: Any, where: str = "") -> list[str]:
    """Where the value is not of the shape."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return [f"{where} is no map"]
        missing = [f"{where}.{name} is missing" for name in NEEDED.get(where.strip("."), set()) - value.keys()]
        known = {name: wanted.get(name, wanted.get("*")) for name in value}
        unknown = [f"{where}.{name} is unknown" for name, shape in known.items() if shape is None]
        deeper = [odd(value[name], shape, f"{where}.{name}") for name, shape in known.items() if shape is not None]
        return [*missing, *unknown, *(each for found in deeper for each in found)]
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{where} is no list"]
        return [each for item in value for each in odd(item, wanted[0], where)]
    right = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
    return [] if right else [f"{where} is {value!r}, not of type {wanted.__name__}"]


def test_it_is_a_scaled_object() -> None:
    example = yaml.safe_load(EXAMPLE.read_text())
    assert (example["apiVersion"], example["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    assert odd(example["spec"], SPEC) == []


def test_the_check_finds_what_is_wrong() -> None:
    spec = {"triggers": [{"type": "x", "metadata": {"threshold": 4}}, {"type": "x"}], "minReplicas": 0, "advanced": 1}
    assert sorted(odd(spec, SPEC)) == [
        ".advanced is no map",
        ".minReplicas is unknown",
        ".scaleTargetRef is missing",
        ".triggers.metadata is missing",
        ".triggers.metadata.threshold is 4, not of type str",
    ]


def test_its_triggers_have_what_the_prometheus_scaler_needs_and_nothing_that_it_does_not_know() -> None:
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    assert 0 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    for trigger in spec["triggers"]:
        assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
        said = trigger["metadata"]
        assert {name for name, needed in PROMETHEUS.items() if needed} <= said.keys() <= PROMETHEUS.keys()
        assert said["query"].startswith("sum("), "one element, which is all that the scaler takes"
        for name in said.keys() & {"threshold", "activationThreshold"}:
            float(said[name])
