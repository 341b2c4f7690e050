"""A mirror of one kind of object: list, watch, and a *diff* on every new list.

The diff is why it exists: what was deleted while the watch was broken is reported as deleted, which kopf's own indexes
never do. A watch that says nothing for `idle_s` counts as dead; the server sends a bookmark every minute.

A watch that broke, or that a server ended before its time since it stops, is taken up again where it ended, unless the
server has gone back to before that: etcd was restored. It would say nothing of what happens until it has come to that
version again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from flashboot_operator.core.facts import Key
from flashboot_operator.kube.client import Gone, Kube, KubeError, Object

log = logging.getLogger(__name__)

OnChange = Callable[[Key, Object | None, Object | None], None]
"""Called with (key, before, after); must not block and not raise."""


SHORT_S = 5.0
"""A watch that lasts for less has failed."""
ENDS_S = 2.0
"""A watch that ends so long before it was to end was ended by a server that stops."""


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


class Reflector:
    def __init__(
        self,
        kube: Kube,
        path: str,
        on_change: OnChange,
        *,
        label_selector: str = "",
        idle_s: float = 70.0,
        watch_s: int = 300,
        page: int = 500,
        max_backoff_s: float = 10.0,
    ) -> None:
        self.path = path
        self.objects: dict[Key, Object] = {}
        self.synced = asyncio.Event()
        self.last_frame = time.monotonic()
        """When the API server last said anything; for liveness."""
        self._kube = kube
        self._on_change = on_change
        self._selector = {"labelSelector": label_selector} if label_selector else {}
        self._idle_s = idle_s
        self._watch_s = watch_s
        self._page = page
        self._max_backoff_s = max_backoff_s

    async def run(self) -> None:
        """For ever. Errors are waited out, longer and longer; so is a server that ends each watch at once, in whatever
        manner, since that would be a hot loop too."""
        version: str | None = None
        failures = 0
        early = False
        while True:
            began = time.monotonic()
            broke: KubeError | None = None
            try:
                if version is not None and early and await self._went_back(version):
                    log.warning("the API server is at an earlier state than before, listing anew: was etcd restored?")
                    version = None
                if version is None:
                    version = await self._list()
                async for seen in self._watch(version):
                    version = seen
            except Gone:
                log.info("the watch is too old, listing anew", extra={"path": self.path})
                version = None
            except KubeError as error:
                broke = error
            lasted = time.monotonic() - began
            early = broke is not None or lasted < self._watch_s - ENDS_S
            failures = (failures if lasted < SHORT_S else 0) + 1
            wait = self._backoff(failures, broke)
            if broke is not None:
                log.warning("watch broke: %s", broke, extra={"path": self.path, "retryInSeconds": round(wait, 2)})
            await asyncio.sleep(wait)

    def _backoff(self, failures: int, broke: KubeError | None) -> float:
        if broke is not None and broke.retry_after:
            return broke.retry_after
        if broke is None and failures == 1:
            return 0.05  # In good order after a long time; or 410 for the first time, and everybody waits for the list.
        return min(self._max_backoff_s, 0.2 * float(2 ** min(failures, 10))) * random.uniform(0.5, 1.0)

    async def _went_back(self, version: str) -> bool:
        answer = await self._kube.get(self.path, **self._selector, limit=1)
        return int(answer["metadata"]["resourceVersion"]) < int(version)

    async def _list(self) -> str:
        found: dict[Key, Object] = {}
        query: dict[str, Any] = {**self._selector, "limit": self._page}
        while True:
            answer = await self._kube.get(self.path, **query)
            found |= {key_of(item): item for item in answer.get("items") or []}
            token = answer["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        self.last_frame = time.monotonic()
        for key in [k for k in self.objects if k not in found]:
            self._on_change(key, self.objects.pop(key), None)
        for key, obj in found.items():
            self._put(key, obj)
        self.synced.set()
        return str(answer["metadata"]["resourceVersion"])

    def _put(self, key: Key, obj: Object) -> None:
        before = self.objects.get(key)
        if before == obj:  # a version alone may come back with other contents
            return
        self.objects[key] = obj
        self._on_change(key, before, obj)

    async def _watch(self, version: str) -> AsyncIterator[str]:
        """Yields the version up to which everything is in `objects`."""
        query = {
            **self._selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": self._watch_s,
        }
        async for frame in self._kube.watch(self.path, query=query, idle_s=self._idle_s):
            self.last_frame = time.monotonic()
            obj = frame["object"]
            if frame["type"] == "DELETED":
                key = key_of(obj)
                if (before := self.objects.pop(key, None)) is not None:
                    self._on_change(key, before, None)
            elif frame["type"] != "BOOKMARK":
                self._put(key_of(obj), obj)
            yield str(obj["metadata"]["resourceVersion"])
