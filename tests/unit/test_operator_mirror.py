"""The cluster as the operator sees it, when words are missing in between."""

from __future__ import annotations

from typing import Any, cast

from flashboot_operator.kube.client import Kube
from flashboot_operator.reconcile.mirror import Mirror

KEY = ("ns", "m-0-0")


def raw(uid: str, node: str) -> dict[str, Any]:
    labels = {"flashboot.io/model-replica": "m"}
    meta = {"uid": uid, "name": KEY[1], "namespace": KEY[0], "labels": labels}
    spec = {"nodeName": node, "containers": [{"name": "engine", "image": "x"}]}
    return {"metadata": {**meta, "creationTimestamp": "2026-03-01T12:00:00Z"}, "spec": spec}


def test_a_pod_that_was_made_anew_under_its_name_in_a_gap_of_the_watch_is_another_one() -> None:
    """As a StatefulSet's are. The new list shows the second where the first was; nobody ever said that it went."""
    bound: list[str] = []
    gone: list[str] = []
    marked: list[tuple[str, str]] = []
    mirror = Mirror(
        cast(Kube, None),
        namespace="flashboot-system",
        mark=marked.append,
        mark_all=lambda: None,
        endpoints=lambda _: None,
        on_bound=bound.append,
        on_gone=gone.append,
    )
    mirror.pods.synced.set()
    mirror.pods._on_change(KEY, None, raw("first", "n1"))
    mirror.pods._on_change(KEY, raw("first", "n1"), raw("second", "n2"))
    assert [(pod.uid, pod.node) for pod in mirror.pods_of(("ns", "m"))] == [("second", "n2")]
    assert (bound, gone) == (["first", "second"], ["first"])
    assert set(marked) == {("ns", "m")}
