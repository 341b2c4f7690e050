"""Whom a change of a pod concerns: nobody, when it is nothing to us."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest

from flashboot_operator.core.facts import Key
from flashboot_operator.kube.client import Kube
from flashboot_operator.reconcile.mirror import Mirror

Object = dict[str, Any]
KEY = ("ns", "m-1")
UID = "5" * 8


def pod(
    *, label: str = "m", volume: str | None = None, uid: str = UID, node: str | None = None, **status: Any
) -> Object:
    attributes = {"flashboot.io/model-replica": volume}
    volumes = [{"name": "flashboot", "csi": {"driver": "csi.flashboot.io", "volumeAttributes": attributes}}]
    spec: Object = {"containers": [{"name": "engine", "image": "x"}], "volumes": volumes if volume else []}
    meta = {
        "name": "m-1",
        "namespace": "ns",
        "uid": uid,
        "labels": {"flashboot.io/model-replica": label},
        "creationTimestamp": "2026-03-01T12:00:00Z",
    }
    return {"metadata": meta, "spec": spec | ({"nodeName": node} if node else {}), "status": status}


class Seen(Mirror):
    def __init__(self) -> None:
        self.marked: list[Key] = []
        super().__init__(
            cast(Kube, None),
            namespace="s",
            mark=self.marked.append,
            mark_all=lambda: None,
            endpoints=lambda _: None,
        )
        self._last: Object | None = None

    def shows(self, after: Object | None) -> set[Key]:
        """Whom the reflector's word about it concerns."""
        self.marked.clear()
        self._pod(KEY, self._last, after)
        self._last = copy.deepcopy(after)
        return set(self.marked)

    def names(self, owner: str) -> list[str]:
        return [each.name for each in self.pods_of(("ns", owner))]


@pytest.fixture
def mirror() -> Seen:
    return Seen()


def test_what_is_nothing_to_us_concerns_nobody(mirror: Seen) -> None:
    assert mirror.shows(pod()) == {("ns", "m")}
    assert mirror.shows(pod(node="n1")) == {("ns", "m")}
    assert mirror.shows(pod(node="n1", phase="Running", podIP="10.0.0.1")) == set()
    ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-01T12:00:09Z"}]
    assert mirror.shows(pod(node="n1", phase="Running", conditions=ready)) == {("ns", "m")}
    assert mirror.shows(None) == {("ns", "m")}
    assert mirror.names("m") == []


def test_a_pod_that_changes_hands_concerns_both(mirror: Seen) -> None:
    mirror.shows(pod())
    assert mirror.shows(pod(label="other")) == {("ns", "m"), ("ns", "other")}
    assert (mirror.names("m"), mirror.names("other")) == ([], ["m-1"])
    assert mirror.shows(pod(label="other", volume="m")) == {("ns", "m"), ("ns", "other")}
    assert (mirror.names("m"), mirror.names("other")) == (["m-1"], ["m-1"])


def test_another_pod_of_the_name_is_another_pod(mirror: Seen) -> None:
    mirror.shows(pod())
    assert mirror.shows(pod(uid="6" * 8)) == {("ns", "m")}
    assert [each.uid for each in mirror.pods_of(("ns", "m"))] == ["6" * 8]
