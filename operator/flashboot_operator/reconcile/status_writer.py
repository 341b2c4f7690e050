"""The status of ModelReplicas: written when it differs, within a budget, and never without the last word."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from flashboot_operator.api.base import API_VERSION, KIND
from flashboot_operator.core.conditions import unknown
from flashboot_operator.core.facts import Key
from flashboot_operator.core.writes import WriteBudget
from flashboot_operator.kube.client import Kube, KubeError, NotFound, Object
from flashboot_operator.reconcile.metrics import Metrics
from flashboot_operator.reconcile.objects import Objects, path_of

EVERY_S = 0.5
"""At most one status write per object in this time."""
BURST = 50
"""So many writes at once after a quiet while, over all objects; beyond, as many a second as the settings allow."""


class StatusWriter:
    def __init__(self, kube: Kube, objects: Objects, metrics: Metrics, *, writes_per_second: int) -> None:
        self._kube = kube
        self._objects = objects
        self._metrics = metrics
        self._budget: WriteBudget[Key] = WriteBudget(writes_per_second, BURST)
        self._written: dict[Key, tuple[float, Object, Object]] = {}
        """Key → when, what we said, what the API server made of it."""

    def forget(self, key: Key) -> None:
        self._written.pop(key, None)
        self._budget.forget(key)

    async def first_sight(self, key: Key, obj: Object) -> Object:
        """The object, of which is said that nothing is known of it yet. Raises KubeError."""
        if self._budget.take(key, time.monotonic()) > 0:
            return obj  # Many new ones at once: the first word will be the whole one.
        conditions = unknown(obj["metadata"]["generation"], datetime.now(UTC))
        said = {"conditions": [c.model_dump(by_alias=True, mode="json") for c in conditions]}
        return await self._apply(key, obj, said)

    async def write(self, key: Key, obj: Object, status: Object) -> float:
        """0, or in how many seconds to come again, with what is true then. Raises KubeError."""
        if obj.get("status") == status:
            return 0.0
        at, said, became = self._written.get(key, (0.0, {}, {}))
        if said == status and became == obj.get("status"):
            return 0.0  # The API server made something else of it; saying it again would change nothing.
        now = time.monotonic()
        wait = at + EVERY_S - now
        if wait <= 0:
            wait = self._budget.take(key, now)
        if wait > 0:
            self._metrics.status("deferred")
            return wait
        got = await self._apply(key, obj, status)
        self._written[key] = (time.monotonic(), status, got.get("status") or {})
        return 0.0

    async def _apply(self, key: Key, obj: Object, status: Object) -> Object:
        meta = {"name": key[1], "namespace": key[0], "uid": obj["metadata"]["uid"]}
        body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}
        try:
            got = await self._kube.apply(path_of(key, "status"), body)
        except NotFound:
            self._objects.doubt(key)
            raise  # Most likely it is gone: the next look will tell, after the queue's back-off.
        except KubeError:
            self._metrics.status("failed")
            raise
        self._metrics.status("written")
        self._objects.show(got)
        return got
