"""`reconcile(key)`: whatever happened, recompute what should be true of one ModelReplica and move towards it.

    object → facts → plan → what each node shall do → workload → status → Events

The nodes come before the API server's side, so that a clone goes on while the API server is slow. Everything may
be repeated; nothing is remembered that the API server and the agents do not hold, but for the names of the present
sources and who was found slow.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.agents.wishes import Wish
from flashboot_operator.api.base import API_VERSION, KIND
from flashboot_operator.core import contest
from flashboot_operator.core.claims import barred_of, divide
from flashboot_operator.core.conditions import unknown
from flashboot_operator.core.cost_of_loss import standings
from flashboot_operator.core.events import notes_of
from flashboot_operator.core.facts import Key, World, believed
from flashboot_operator.core.kept import as_it_is
from flashboot_operator.core.learned import kinds_of
from flashboot_operator.core.plan import ArenaPlan, Memory, Owner, memory_of, wanted_of
from flashboot_operator.core.quarantine import probes_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.replicas import with_leaders_hash
from flashboot_operator.core.residency import term, unused_since
from flashboot_operator.core.status import compute_status
from flashboot_operator.core.takeover import taken_over
from flashboot_operator.core.writes import WriteBudget
from flashboot_operator.kube.client import FIELD_MANAGER, Kube, KubeError, NotFound, Object
from flashboot_operator.kube.events import Recorder
from flashboot_operator.kube.queue import WorkQueue
from flashboot_operator.reconcile.costs import Costs
from flashboot_operator.reconcile.metrics import Metrics
from flashboot_operator.reconcile.mirror import Mirror
from flashboot_operator.reconcile.objects import Objects, path_of
from flashboot_operator.reconcile.owners import Owners
from flashboot_operator.reconcile.refusal import not_understood, refusal
from flashboot_operator.reconcile.told import Told
from flashboot_operator.reconcile.workload import Workloads

log = logging.getLogger(__name__)

REVISIT_S = 5.0
"""How soon to look again at what is not Ready, or has a silent agent: silence and lateness come without an event."""
STATUS_EVERY_S = 0.5
"""At most one status write per object in this time."""
STATUS_BURST = 50
"""So many writes at once after a quiet while, over all objects; beyond, as many a second as the settings allow."""


class Controller:
    def __init__(
        self, kube: Kube, objects: Objects, recorder: Recorder, metrics: Metrics, *, writes_per_second: int
    ) -> None:
        self.objects = objects
        self.told = Told(metrics.told)
        self.queue: WorkQueue[Key] = WorkQueue(self.reconcile, on_run=metrics.looked)
        self.plans: dict[Key, tuple[Owner, World, list[ArenaPlan]]] = {}
        """What was decided last, for the live view."""
        self.mirror: Mirror
        self.fleet: Fleet
        self._kube = kube
        self._recorder = recorder
        self._workloads = Workloads(kube)
        self._costs = Costs(kube)
        self._owners = Owners()
        self._memory: dict[Key, Memory] = {}
        self._contests: dict[Key, contest.Contest] = {}
        self._written: dict[Key, tuple[float, Object, Object]] = {}
        """Key → when, what we said, what the API server made of it."""
        self._metrics = metrics
        self._budget: WriteBudget[Key] = WriteBudget(writes_per_second, STATUS_BURST)

    # Marks

    def on_object(self, key: Key, obj: Object | None) -> None:
        """kopf has seen this."""
        if obj is None:
            self.objects.doubt(key)
        else:
            self.objects.show(obj)
            hands = contest.hands_of(obj["metadata"].get("managedFields") or [], own=FIELD_MANAGER)
            before = self._contests.get(key, contest.Contest())
            self._contests[key] = contest.seen(before, hands, datetime.now(UTC))
        self.queue.mark(key)

    def on_workload(self, key: Key) -> None:
        """A pod or what made it changed. When they go, the ModelReplica may have gone too."""
        made = self.mirror.deployment_of(key) is not None or self.mirror.sets_of(key)
        if self.objects.peek(key) is not None and not made:
            self.objects.doubt(key)
        self.queue.mark(key)

    def mark_all(self) -> None:
        for key in self.objects.known():
            self.queue.mark(key)

    # The work

    async def reconcile(self, key: Key) -> None:
        sequence = self.fleet.sequence()
        try:
            await self._reconcile(key, sequence)
        except Exception as error:  # a fault of ours about one must not keep from the nodes what others want
            if not isinstance(error, KubeError):
                self.fleet.looked(key, sequence)
            raise

    async def _reconcile(self, key: Key, sequence: int) -> None:
        began = time.monotonic()
        obj = await self.objects.get(key)
        if obj is None:
            self._forget(key, sequence)
            return
        try:
            owner = self._owners.of(key, obj)
        except ValidationError as error:
            self._keep(key, obj["metadata"]["uid"], sequence)
            said, subject, notes = refusal(key, obj, not_understood(error))
            self._recorder.tell(subject, notes)
            await self._write(key, obj, said)
            return
        before = obj.get("status") or {}
        world = self._world(owner, before)
        memory = self._memory.get(key) or taken_over(owner, world, before)
        kinds = kinds_of(owner, world, memory.learned)
        plans = plan_replica(owner, world, memory, kinds)
        self._memory[key] = memory_of(plans, kinds.learned)
        self.fleet.want(key, Wish(wanted_of(plans), probes_of(world, plans), barred_of(world.strays)), sequence)
        self._metrics.planned(self.plans[key][2] if key in self.plans else (), plans)
        self.plans[key] = (owner, world, plans)
        self.told.decided((pod.uid for plan in plans for pod in plan.pods), began)

        if not before.get("conditions"):
            obj = await self._first_sight(key, obj)
        if owner.spec.template is not None and owner.spec.replicas is None and not owner.going:
            obj = await self._number(key, obj)
        design = self._owners.design(key)
        outcome, done = await self._workloads.ensure(key, owner, world, plans, self.mirror, design=design)
        before = obj.get("status") or {}
        status = compute_status(
            owner, world, plans, generation=obj["metadata"]["generation"], before=before, refused=outcome.trouble
        )
        self._recorder.tell(owner, [*done, *notes_of(owner, world, plans, status, before.get("conditions") or [])])
        await self._write(key, obj, status.model_dump(by_alias=True, exclude_none=True, mode="json"))
        more = await self._costs.tell(key, owner, standings(owner, world, plans))
        if outcome.error is not None:
            raise outcome.error
        if more:
            self.queue.mark(key, after_s=STATUS_EVERY_S)
        if world.missing_agents or any(c.type == "Ready" and c.status != "True" for c in status.conditions or []):
            self.queue.mark(key, after_s=REVISIT_S)
        if (until := term(owner, world).until) is not None and world.now < until:
            self.queue.mark(key, after_s=(until - world.now).total_seconds())

    def _keep(self, key: Key, uid: str, sequence: int) -> None:
        """Its spec cannot be read: what was wanted stays; before anything was, what the nodes have."""
        if key in self.plans and self.plans[key][0].uid == uid:
            self.fleet.looked(key, sequence)
        else:
            self.fleet.want(key, Wish(as_it_is(uid, self.fleet.agents())), sequence)

    def _forget(self, key: Key, sequence: int) -> None:
        self.fleet.want(key, Wish(), sequence)
        for table in (self.plans, self._memory, self._written, self._contests):
            table.pop(key, None)
        self._workloads.forget(key)
        self._costs.forget(key)
        self._owners.forget(key)
        self._budget.forget(key)
        self.queue.forget(key)

    async def _first_sight(self, key: Key, obj: Object) -> Object:
        if self._budget.take(key, time.monotonic()) > 0:
            return obj  # Many new ones at once: the first word will be the whole one.
        conditions = unknown(obj["metadata"]["generation"], datetime.now(UTC))
        said = {"conditions": [c.model_dump(by_alias=True, mode="json") for c in conditions]}
        return await self._apply_status(key, obj, said)

    async def _number(self, key: Key, obj: Object) -> Object:
        """An autoscaler can only scale what has a number; from now on the number is the autoscaler's."""
        meta = obj["metadata"]
        patch = {"metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}, "spec": {"replicas": 1}}
        got = await self._kube.merge(path_of(key), patch)
        self.objects.show(got)
        return got

    def _world(self, owner: Owner, status: Object) -> World:
        key, now = (owner.namespace, owner.name), datetime.now(UTC)
        pods, strays = divide(owner.name, self.mirror.pods_of(key), adopts=owner.spec.template is None)
        nodes = {p.node for p in pods if p.node is not None}
        return World(
            nodes=self.mirror.nodes,
            pods=with_leaders_hash(pods),
            agents=believed(self.fleet.agents(), self.mirror.nodes),
            now=now,
            deployment=self.mirror.deployment_of(key),
            sets=self.mirror.groups_of(key, owner.uid),
            strays=strays,
            contested=contest.trouble(self._contests.get(key, contest.Contest()), now),
            running_s=self.mirror.running_s(key),
            missing_agents=self.fleet.silent(nodes),
            skewed=self.fleet.skewed(nodes),
            unused_since=unused_since(owner, pods, status, now),
        )

    # Status

    async def _write(self, key: Key, obj: Object, status: Object) -> None:
        if obj.get("status") == status:
            return
        at, said, became = self._written.get(key, (0.0, {}, {}))
        if said == status and became == obj.get("status"):
            return  # The API server made something else of it; saying it again would change nothing.
        now = time.monotonic()
        wait = at + STATUS_EVERY_S - now
        if wait <= 0:
            wait = self._budget.take(key, now)
        if wait > 0:
            self._metrics.status("deferred")
            self.queue.mark(key, after_s=wait)
            return
        got = await self._apply_status(key, obj, status)
        self._written[key] = (time.monotonic(), status, got.get("status") or {})

    async def _apply_status(self, key: Key, obj: Object, status: Object) -> Object:
        meta = {"name": key[1], "namespace": key[0], "uid": obj["metadata"]["uid"]}
        body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}
        try:
            got = await self._kube.apply(path_of(key, "status"), body)
        except NotFound:
            self.objects.doubt(key)
            raise  # Most likely it is gone: the next look will tell, after the queue's back-off.
        except KubeError:
            self._metrics.status("failed")
            raise
        self._metrics.status("written")
        self.objects.show(got)
        return got
