"""The cluster as the operator sees it: a reflector per kind, parsed once per change, and whom a change concerns."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from flashboot_operator.api.base import KIND, LABEL_MODEL_REPLICA
from flashboot_operator.core.facts import Key, Node, Pod, Raw
from flashboot_operator.core.parsing import node_of, pod_of, volume_of
from flashboot_operator.kube.client import Kube, Object
from flashboot_operator.kube.reflector import Reflector

log = logging.getLogger(__name__)

AGENT_SELECTOR = "app.kubernetes.io/name=flashboot-agent"


class Mirror:
    """`mark(key)` for each ModelReplica that a change concerns, `mark_all()` when it may be any of them."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        mark: Callable[[Key], None],
        mark_all: Callable[[], None],
        endpoints: Callable[[dict[str, str]], None],
        on_bound: Callable[[str], None] = lambda _: None,
        on_gone: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_bound`: UID of a pod that got its node just now; `on_gone`: of a pod that was deleted."""
        self.nodes: dict[str, Node] = {}
        self._pods: dict[Key, dict[str, Pod]] = {}
        self._running: dict[str, tuple[datetime, float]] = {}
        """UID of a pod → when its engine's container started by the node's clock, and by our own."""
        self._mark = mark
        self._mark_all = mark_all
        self._endpoints = endpoints
        self._on_bound = on_bound
        self._on_gone = on_gone
        self.pods = Reflector(kube, "/api/v1/pods", self._pod, label_selector=LABEL_MODEL_REPLICA)
        self.node_objects = Reflector(kube, "/api/v1/nodes", self._node)
        self.deployments = self._made(kube, "/apis/apps/v1/deployments")
        self.sets = self._made(kube, "/apis/apps/v1/statefulsets")
        self.services = self._made(kube, "/api/v1/services")
        self.budgets = self._made(kube, "/apis/policy/v1/poddisruptionbudgets")
        self.agents = Reflector(
            kube, f"/api/v1/namespaces/{namespace}/pods", self._agent, label_selector=AGENT_SELECTOR
        )

    @property
    def reflectors(self) -> list[Reflector]:
        made = [self.deployments, self.sets, self.services, self.budgets]
        return [self.pods, self.node_objects, *made, self.agents]

    def _made(self, kube: Kube, path: str) -> Reflector:
        """Of objects that the operator makes, and labels."""
        return Reflector(kube, path, self._workload, label_selector=LABEL_MODEL_REPLICA)

    def watch_age_s(self) -> float:
        """Seconds since the most silent of the watches said something."""
        return time.monotonic() - min(r.last_frame for r in self.reflectors)

    async def synced(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()

    def pods_of(self, key: Key) -> tuple[Pod, ...]:
        """Those that are of it by their label or by their volume (core/claims.py)."""
        return tuple(sorted(self._pods.get(key, {}).values(), key=lambda p: p.name))

    def running_s(self, key: Key) -> dict[str, float]:
        """UID → for how long the engine's container of the pod has been running, of those whose is."""
        now = time.monotonic()
        return {uid: now - self._running[uid][1] for uid in self._pods.get(key, {}) if uid in self._running}

    def deployment_of(self, key: Key) -> Object | None:
        return self.deployments.objects.get(key)

    def sets_of(self, key: Key) -> list[Object]:
        """All StatefulSets with the ModelReplica's label, whoever made them."""
        return [
            obj
            for (namespace, _), obj in self.sets.objects.items()
            if namespace == key[0] and obj["metadata"]["labels"][LABEL_MODEL_REPLICA] == key[1]
        ]

    def groups_of(self, key: Key, uid: str) -> dict[str, Object]:
        """The StatefulSets that the ModelReplica of this UID controls and that are not going, by name."""
        return {
            obj["metadata"]["name"]: obj
            for obj in self.sets_of(key)
            if ours(obj, uid) and not obj["metadata"].get("deletionTimestamp")
        }

    def addresses(self) -> dict[str, str]:
        """Node → IP of its agent's newest running pod."""
        found: dict[str, tuple[str, str]] = {}
        for pod in self.agents.objects.values():
            node, status = pod["spec"].get("nodeName"), pod.get("status") or {}
            if (
                not node
                or not status.get("podIP")
                or status.get("phase") != "Running"
                or pod["metadata"].get("deletionTimestamp")
            ):
                continue
            found[node] = max(found.get(node, ("", "")), (pod["metadata"]["creationTimestamp"], status["podIP"]))
        return {node: ip for node, (_, ip) in found.items()}

    def _pod(self, key: Key, before: Object | None, after: Object | None) -> None:
        replaced = before is not None and after is not None and _uid(before) != _uid(after)  # in a gap of the watch
        if before is not None and (after is None or replaced):
            self._running.pop(_uid(before), None)
            self._on_gone(_uid(before))
        if after is not None and self.pods.synced.is_set() and _bound(after) and (replaced or not _bound(before)):
            self._on_bound(_uid(after))
        was, now = _claims(key, before), _claims(key, after)
        for owner, uid in was - now:
            self._put(owner, uid, None)
        pod = pod_of(after) if after is not None else None
        if pod is not None:
            self._runs(pod)
        for owner, uid in now:
            self._put(owner, uid, pod)

    def _runs(self, pod: Pod) -> None:
        """Nodes' clocks may differ from ours, so a start that is shown as it happens counts from then on. Of those that
        the first list shows nobody can say more than the node's clock does."""
        if pod.started is None:
            self._running.pop(pod.uid, None)
        elif self._running.get(pod.uid, (None, 0.0))[0] != pod.started:
            ago = 0.0 if self.pods.synced.is_set() else (datetime.now(UTC) - pod.started).total_seconds()
            self._running[pod.uid] = (pod.started, time.monotonic() - max(0.0, ago))

    def _put(self, owner: Key, uid: str, pod: Pod | None) -> None:
        """Most of what a kubelet writes is nothing to us."""
        pods = self._pods.setdefault(owner, {})
        changed = pods.get(uid) != pod
        if pod is not None:
            pods[uid] = pod
        else:
            pods.pop(uid, None)
        if not pods:
            del self._pods[owner]
        if changed:
            self._mark(owner)

    def _node(self, key: Key, before: Object | None, after: Object | None) -> None:
        was = self.nodes.get(key[1])
        now = node_of(after) if after is not None else None
        if now is not None:
            self.nodes[key[1]] = now
        else:
            self.nodes.pop(key[1], None)
        if was != now:  # Most changes of a node are heartbeats.
            self._mark_all()

    def _workload(self, key: Key, before: Object | None, after: Object | None) -> None:
        for raw in (before, after):
            if raw is not None:
                self._mark((key[0], raw["metadata"]["labels"][LABEL_MODEL_REPLICA]))

    def _agent(self, key: Key, before: Object | None, after: Object | None) -> None:
        self._endpoints(self.addresses())


def _uid(obj: Raw) -> str:
    return str(obj["metadata"]["uid"])


def _claims(key: Key, pod: Object | None) -> set[tuple[Key, str]]:
    """Of whom it is, by its label or by its volume, with its UID."""
    if pod is None:
        return set()
    name = (pod["metadata"].get("labels") or {}).get(LABEL_MODEL_REPLICA, "")
    owners = {name, volume_of(pod.get("spec") or {}) or name}
    return {((key[0], owner), _uid(pod)) for owner in owners}


def _bound(pod: Object | None) -> bool:
    return pod is not None and bool(pod["spec"].get("nodeName"))


def controller_of(obj: Raw) -> tuple[str, str] | None:
    """Kind and UID of the owner that controls the object."""
    for owner in obj["metadata"].get("ownerReferences") or []:
        if owner.get("controller"):
            return owner["kind"], owner["uid"]
    return None


def ours(obj: Object, uid: str) -> bool:
    return controller_of(obj) == (KIND, uid)
