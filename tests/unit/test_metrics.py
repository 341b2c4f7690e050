"""The operator's metrics: all of them on the page, and labels that can't grow with the cluster."""

from __future__ import annotations

import re
from pathlib import Path

from flashboot_operator.core.calls import Call
from flashboot_operator.reconcile.metrics import GAUGES, PREFIX, Metrics
from tests.unit.test_operator_trees import a_chain

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def used() -> Metrics:
    """Everything has happened once."""
    metrics = Metrics()
    metrics.planned([], a_chain()[1])
    metrics.looked(0.1, 0.2, False)
    metrics.kept(0.1, 0.2, False)
    metrics.api_call(Call("get", "pods"), "200", 0.1)
    metrics.agent_call("desired", "ok", 0.1)
    metrics.status("written")
    metrics.event("written")
    metrics.told({"queue": 0.1})
    return metrics


def served(metrics: Metrics) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → kind, labels."""
    found = {}
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert family.samples, f"{name} has no sample: the test has to use its hook"
        found[name] = (family.type, frozenset(labels))
    return found


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    rows = re.findall(r"^\| `(flashboot_operator_\w+)(?:\{([\w,]+)\})?` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    return {name: (kind, frozenset(labels.split(",")) if labels else frozenset()) for name, labels, kind in rows}


def test_the_page_has_every_metric_with_its_kind_and_labels() -> None:
    metrics = used()
    metrics.read(lambda: dict.fromkeys(GAUGES, 1.0), lambda: {"n1": 1.0})
    assert served(metrics) == documented()


def test_plans_count_their_changes_once() -> None:
    _, plans, _ = a_chain()
    metrics = Metrics()
    metrics.planned([], plans)
    metrics.planned(plans, plans)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(PREFIX + name, labels)

    edges = sum(len(lane) for plan in plans for lane in plan.lanes)
    assert edges
    assert value("plan_edges_changed_total", change="joined") == edges
    assert value("elections_total", role="source", reason="OnlySealed") == 1
