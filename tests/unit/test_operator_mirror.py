"""The cluster as the operator sees it, when words are missing in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from flashboot_operator.kube.client import Kube
from flashboot_operator.reconcile.mirror import Mirror

KEY = ("ns", "m-0-0")


def raw(uid: str, node: str) -> dict[str, Any]:
    labels = {"flashboot.io/model-replica": "m"}
    meta = {"uid": uid, "name": KEY[1], "namespace": KEY[0], "labels": labels}
    spec = {"nodeName": node, "containers": [{"name": "engine", "image": "x"}]}
    return {"metadata": {**meta, "creationTimestamp": "2026-03-01T12:00:00Z"}, "spec": spec}


def mirror_of(**told: Any) -> Mirror:
    """`told`: whom it tells what."""
    deaf: dict[str, Any] = {"mark": lambda _: None, "mark_all": lambda: None, "endpoints": lambda _: None}
    return Mirror(cast(Kube, None), namespace="flashboot-system", **(deaf | told))


def started(minutes_ago: float) -> dict[str, Any]:
    """A pod whose node says that its engine's container started so long ago."""
    at = (datetime.now(UTC) - timedelta(minutes=minutes_ago)).isoformat()
    statuses = [{"name": "engine", "state": {"running": {"startedAt": at}}}]
    return {**raw("first", "n1"), "status": {"containerStatuses": statuses}}


@pytest.mark.parametrize("minutes", [-60, 0, 60])
def test_for_how_long_an_engine_runs_is_measured_by_one_clock_whatever_its_nodes_says(minutes: float) -> None:
    mirror = mirror_of()
    mirror.pods.synced.set()
    mirror.pods._on_change(KEY, None, raw("first", "n1"))
    assert mirror.running_s(("ns", "m")) == {}
    mirror.pods._on_change(KEY, raw("first", "n1"), started(minutes))
    assert 0 <= mirror.running_s(("ns", "m"))["first"] < 5
    mirror.pods._on_change(KEY, started(minutes), None)
    assert mirror._running == {}


def test_of_an_engine_that_ran_before_we_looked_the_nodes_clock_is_all_that_there_is() -> None:
    mirror = mirror_of()
    mirror.pods._on_change(KEY, None, started(4))
    assert 239 < mirror.running_s(("ns", "m"))["first"] < 250


def test_a_pod_that_was_made_anew_under_its_name_in_a_gap_of_the_watch_is_another_one() -> None:
    """As a StatefulSet's are. The new list shows the second where the first was; nobody ever said that it went."""
    bound: list[str] = []
    gone: list[str] = []
    marked: list[tuple[str, str]] = []
    mirror = mirror_of(mark=marked.append, on_bound=bound.append, on_gone=gone.append)
    mirror.pods.synced.set()
    mirror.pods._on_change(KEY, None, raw("first", "n1"))
    mirror.pods._on_change(KEY, raw("first", "n1"), raw("second", "n2"))
    assert [(pod.uid, pod.node) for pod in mirror.pods_of(("ns", "m"))] == [("second", "n2")]
    assert (bound, gone) == (["first", "second"], ["first"])
    assert set(marked) == {("ns", "m")}
