"""What the API server is to hold of a ModelReplica, kept as it was decided: workload → status → Events → costs of pods.

Beside the looks (controller.py), with a queue of its own: nodes are told what to do while the API server is slow. What
is done here rests on a decision that knows all that is known: where a look is due, or the last one was long ago, as in
a back-off, it is decided anew first.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from flashboot_operator.core.cost_of_loss import standings
from flashboot_operator.core.events import transitions
from flashboot_operator.core.facts import Key, Trouble
from flashboot_operator.core.plan import Decision
from flashboot_operator.core.residency import term
from flashboot_operator.core.status import compute_status
from flashboot_operator.kube.client import Kube, NotFound, Object
from flashboot_operator.kube.events import Recorder
from flashboot_operator.kube.queue import WorkQueue
from flashboot_operator.reconcile.costs import Costs
from flashboot_operator.reconcile.metrics import Metrics
from flashboot_operator.reconcile.mirror import Mirror
from flashboot_operator.reconcile.objects import Objects, path_of
from flashboot_operator.reconcile.refusal import refusal
from flashboot_operator.reconcile.status_writer import EVERY_S, StatusWriter
from flashboot_operator.reconcile.workload import Workloads

FRESH_S = 1.0
"""An older decision is made anew, since time has passed it by."""
REVISIT_S = 5.0
"""How soon to look again at what is not Ready, or has a silent agent: silence and lateness come without an event."""

Decided = Decision | Trouble
"""Trouble: why nothing could be decided about the object."""


class Upkeep:
    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        recorder: Recorder,
        metrics: Metrics,
        *,
        writes_per_second: int,
        decide: Callable[[Key], Awaitable[None]],
        looks: WorkQueue[Key],
    ) -> None:
        """`decide`: make the decision about this one anew, by `decided`. `looks`: which of them are to be looked at."""
        self.mirror: Mirror
        self.queue: WorkQueue[Key] = WorkQueue(self.keep, on_run=metrics.kept)
        self._objects = objects
        self._kube = kube
        self._recorder = recorder
        self._status = StatusWriter(kube, objects, metrics, writes_per_second=writes_per_second)
        self._workloads = Workloads(kube)
        self._costs = Costs(kube)
        self._decide = decide
        self._looks = looks
        self._decided: dict[Key, tuple[float, Decided]] = {}

    def decided(self, key: Key, decided: Decided) -> None:
        self._decided[key] = time.monotonic(), decided

    def gone(self, key: Key) -> None:
        """There is no such ModelReplica any more; what is remembered of it goes when nobody is at work on it."""
        self._decided.pop(key, None)
        self.queue.mark(key)

    async def _fresh(self, key: Key) -> Decided | None:
        """None: it is gone."""
        if (last := self._decided.get(key)) is None:
            return None
        if self._looks.is_due(key) or time.monotonic() - last[0] > FRESH_S:
            await self._decide(key)
        return self._decided[key][1] if key in self._decided else None

    async def keep(self, key: Key) -> None:
        """Raises KubeError when something could not be done."""
        try:
            await self._keep(key)
        except NotFound:
            self._looks.mark(key)  # which asks whether the ModelReplica is still there
            raise

    async def _keep(self, key: Key) -> None:
        decided, obj = await self._fresh(key), self._objects.peek(key)
        if decided is None or obj is None:
            self._forget(key)
        elif isinstance(decided, Trouble):
            said, subject, notes = refusal(key, obj, decided)
            self._recorder.tell(subject, notes)
            await self._write(key, obj, said)
        elif not _is_of(decided, obj):  # it changed since
            self._looks.mark(key)
        else:
            await self._keep_as(key, obj, decided)

    async def _keep_as(self, key: Key, obj: Object, decision: Decision) -> None:
        owner, world, plans = decision.owner, decision.world, decision.plans
        if not (obj.get("status") or {}).get("conditions"):
            obj = await self._status.first_sight(key, obj)
        if owner.spec.template is not None and owner.spec.replicas is None and not owner.going:
            obj = await self._number(key, obj)
        outcome, done = await self._workloads.ensure(key, owner, world, plans, self.mirror, design=decision.design)
        before = obj.get("status") or {}
        status = compute_status(
            owner, world, plans, generation=obj["metadata"]["generation"], before=before, refused=outcome.trouble
        )
        self._recorder.tell(owner, [*done, *transitions(status.conditions or [], before.get("conditions") or [])])
        await self._write(key, obj, status.model_dump(by_alias=True, exclude_none=True, mode="json"))
        more = await self._costs.tell(key, owner, standings(owner, world, plans))
        if outcome.error is not None:
            raise outcome.error
        if more:
            self.queue.mark(key, after_s=EVERY_S)
        if world.missing_agents or any(c.type == "Ready" and c.status != "True" for c in status.conditions or []):
            self._looks.mark(key, after_s=REVISIT_S)
        if (until := term(owner, world).until) is not None and world.now < until:
            self._looks.mark(key, after_s=(until - world.now).total_seconds())

    async def _write(self, key: Key, obj: Object, status: Object) -> None:
        if (wait := await self._status.write(key, obj, status)) > 0:
            self.queue.mark(key, after_s=wait)

    async def _number(self, key: Key, obj: Object) -> Object:
        """An autoscaler can only scale what has a number; from now on the number is the autoscaler's."""
        meta = obj["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "spec": {"replicas": 1}}
        got = await self._kube.merge(path_of(key), patch)
        self._objects.show(got)
        self._looks.mark(key)
        return got

    def _forget(self, key: Key) -> None:
        self._status.forget(key)
        self._workloads.forget(key)
        self._costs.forget(key)
        self.queue.forget(key)


def _is_of(decision: Decision, obj: Object) -> bool:
    meta = obj["metadata"]
    return (decision.owner.uid, decision.generation) == (meta["uid"], meta["generation"])
