"""Events, told once each, without making a reconciliation wait."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from datetime import UTC, datetime

from flashboot_operator.api.base import API_VERSION, KIND
from flashboot_operator.core.events import Note
from flashboot_operator.core.plan import Owner
from flashboot_operator.kube.client import Conflict, Kube, KubeError, Object

log = logging.getLogger(__name__)

REMEMBERED = 20_000
WAITING = 1_000


class Recorder:
    def __init__(self, kube: Kube, *, instance: str) -> None:
        self._kube = kube
        self._instance = instance[:128]
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._queue: asyncio.Queue[tuple[str, Object]] = asyncio.Queue(WAITING)

    def tell(self, owner: Owner, notes: list[Note]) -> None:
        for note in notes:
            key = (owner.namespace, note.name(owner))
            if key in self._told:
                continue
            self._told[key] = None
            while len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
            try:
                self._queue.put_nowait((owner.namespace, self._event(owner, note)))
            except asyncio.QueueFull:
                log.warning("too many events are waiting, one is left out", extra={"reason": note.reason})

    def _event(self, owner: Owner, note: Note) -> Object:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": note.name(owner), "namespace": owner.namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": "flashboot.io/operator",
            "reportingInstance": self._instance,
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": owner.namespace,
                "name": owner.name,
                "uid": owner.uid,
            },
            "type": note.kind,
            "reason": note.reason,
            "action": note.action,
            "note": note.message[:1024],
        }

    async def run(self) -> None:
        while True:
            namespace, event = await self._queue.get()
            for attempt in range(3):
                try:
                    await self._kube.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event)
                    break
                except Conflict:
                    break  # Told already, by us before a restart.
                except KubeError as error:
                    log.warning("event not written: %s", error, extra={"event": event["reason"], "attempt": attempt})
                    await asyncio.sleep(error.retry_after or 0.5 * 2**attempt)
