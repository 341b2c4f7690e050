"""Events, told once each, without making a reconciliation wait. What happens again is counted in the one that is there.

`kubectl describe` then shows one line with its count, since when, and what was said last. They are Events of core/v1:
kubectl sorts by a time that those of events.k8s.io/v1 may not have, and only the former may say something new when they
are counted. After a restart the count begins anew: one that the API server still has is left as it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from flashboot_operator.api.base import API_VERSION, KIND
from flashboot_operator.core.note import Named, Note
from flashboot_operator.kube.client import Conflict, Kube, KubeError, NotFound, Object

log = logging.getLogger(__name__)

REPORTER = "flashboot.io/operator"
REMEMBERED = 20_000
WAITING = 1_000
MOST_BYTES = 1024
"""Of a note: the API server counts bytes, not characters."""
PAUSE_S = 30.0
"""An Event is counted up at most this often; what happens in between shows with the next time."""


@dataclass(frozen=True)
class Told:
    occasion: str
    count: int
    at: float
    """Monotonic."""


class Recorder:
    def __init__(self, kube: Kube, *, instance: str, on_event: Callable[[str], None] = lambda _: None) -> None:
        """`on_event`: told of each what became of it: written, counted, duplicate, failed or dropped."""
        self._kube = kube
        self._on_event = on_event
        self._instance = instance[:128]
        self._told: OrderedDict[tuple[str, str], Told] = OrderedDict()
        self._queue: asyncio.Queue[tuple[Object, int]] = asyncio.Queue(WAITING)

    def tell(self, owner: Named, notes: list[Note]) -> None:
        for note in notes:
            key, now = (owner.namespace, note.name(owner)), time.monotonic()
            before = self._told.get(key)
            if before is not None and before.occasion == note.occasion:
                continue
            if before is not None and now - before.at < PAUSE_S:
                self._told[key] = replace(before, occasion=note.occasion, count=before.count + 1)
                continue
            self._told[key] = told = Told(note.occasion, before.count + 1 if before is not None else 1, now)
            self._told.move_to_end(key)
            while len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
            try:
                self._queue.put_nowait((self._event(owner, note), told.count))
            except asyncio.QueueFull:
                self._on_event("dropped")
                log.warning("too many events are waiting, one is left out", extra={"reason": note.reason})

    def _event(self, owner: Named, note: Note) -> Object:
        regarding = {"apiVersion": API_VERSION, "kind": KIND, "name": owner.name, "uid": owner.uid}
        return event(note, note.name(owner), owner.namespace, regarding, instance=self._instance)

    async def run(self) -> None:
        while True:
            await self._try(*await self._queue.get())

    async def drain(self) -> None:
        """All that waits, and no more."""
        while not self._queue.empty():
            await self._try(*self._queue.get_nowait())

    async def _try(self, body: Object, count: int) -> None:
        for attempt in range(3):
            try:
                self._on_event(await self._write(body, count))
                return
            except KubeError as error:
                log.warning("event not written: %s", error, extra={"event": body["reason"], "attempt": attempt})
                await asyncio.sleep(error.retry_after or 0.5 * 2**attempt)
        self._on_event("failed")

    async def _write(self, body: Object, count: int) -> str:
        if count > 1:
            again = {"count": count, "lastTimestamp": body["lastTimestamp"], "message": body["message"]}
            try:
                await self._kube.merge(f"{path_of(body)}/{body['metadata']['name']}", again)
                return "counted"
            except NotFound:
                pass  # The API server forgets Events after an hour: it is told anew.
        try:
            await self._kube.create(path_of(body), body)
        except Conflict:
            return "duplicate"  # Told already, by us before a restart.
        return "written"


def path_of(body: Object) -> str:
    return f"/api/v1/namespaces/{body['metadata']['namespace']}/events"


def event(note: Note, name: str, namespace: str, regarding: Object, *, instance: str) -> Object:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER,
        "reportingInstance": instance,
        "involvedObject": {**regarding, "namespace": namespace},
        "type": note.kind,
        "reason": note.reason,
        "action": note.action,
        "message": note.message.encode()[:MOST_BYTES].decode(errors="ignore"),
    }
