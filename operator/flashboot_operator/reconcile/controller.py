"""`look(key)`: whatever happened, decide anew what should be true of one ModelReplica, and have the nodes told.

    object → facts → plan → what each node shall do → (upkeep.py) workload → status → Events

A look asks the API server for nothing but an object that may be gone: a pod that is bound is made known to its node's
agent within a moment, and a clone goes on while the API server is slow. Everything may be repeated; nothing is
remembered that the API server and the agents do not hold, but for the names of the present sources and who was slow.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

from pydantic import ValidationError

from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.agents.wishes import Wish
from flashboot_operator.core import contest
from flashboot_operator.core.claims import barred_of, divide
from flashboot_operator.core.events import happened
from flashboot_operator.core.facts import Key, World, believed
from flashboot_operator.core.kept import as_it_is
from flashboot_operator.core.learned import kinds_of
from flashboot_operator.core.plan import Decision, Memory, Owner, memory_of, wanted_of
from flashboot_operator.core.quarantine import probes_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.replicas import with_leaders_hash
from flashboot_operator.core.residency import unused_since
from flashboot_operator.core.takeover import taken_over
from flashboot_operator.kube.client import FIELD_MANAGER, Kube, Object
from flashboot_operator.kube.events import Recorder
from flashboot_operator.kube.queue import WorkQueue
from flashboot_operator.reconcile.metrics import Metrics
from flashboot_operator.reconcile.mirror import Mirror
from flashboot_operator.reconcile.objects import Objects
from flashboot_operator.reconcile.owners import Owners
from flashboot_operator.reconcile.refusal import not_understood
from flashboot_operator.reconcile.told import Told
from flashboot_operator.reconcile.upkeep import Upkeep

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""Between two looks at one, at least: what comes meanwhile falls together, as nodes' words while bytes flow."""
URGENT_S = 0.02
"""The same when the API server shows something new, as a pod that is bound."""


class Controller:
    def __init__(
        self, kube: Kube, objects: Objects, recorder: Recorder, metrics: Metrics, *, writes_per_second: int
    ) -> None:
        self.objects = objects
        self.told = Told(metrics.told)
        self.queue: WorkQueue[Key] = WorkQueue(
            self.look, min_interval_s=LOOK_S, urgent_interval_s=URGENT_S, on_run=metrics.looked
        )
        self.upkeep = Upkeep(
            kube,
            objects,
            recorder,
            metrics,
            writes_per_second=writes_per_second,
            decide=self.decide,
            looks=self.queue,
        )
        self.decisions: dict[Key, Decision] = {}
        """What was decided last."""
        self.mirror: Mirror
        self.fleet: Fleet
        self._owners = Owners()
        self._memory: dict[Key, Memory] = {}
        self._contests: dict[Key, contest.Contest] = {}
        self._metrics = metrics
        self._recorder = recorder

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
        self.queue.mark(key, urgent=True)

    def on_workload(self, key: Key) -> None:
        """A pod or what made it changed. When what we made goes, the ModelReplica may have gone too."""
        known = self.objects.peek(key)
        made = self.mirror.deployment_of(key) is not None or self.mirror.sets_of(key)
        if known is not None and known["spec"].get("template") is not None and not made:
            self.objects.doubt(key)
        self.queue.mark(key, urgent=True)

    def mark_all(self) -> None:
        for key in self.objects.known():
            self.queue.mark(key)

    # The work

    async def look(self, key: Key) -> None:
        await self.decide(key)
        self.upkeep.queue.mark(key)

    async def decide(self, key: Key) -> None:
        """Raises KubeError when nobody can say whether the object is there."""
        began = time.monotonic()
        obj = await self.objects.get(key)
        sequence = self.fleet.sequence()
        try:
            self._decide(key, obj, sequence, began)
        except Exception:  # a fault of ours about one must not keep from the nodes what others want
            self.fleet.looked(key, sequence)
            raise

    def _decide(self, key: Key, obj: Object | None, sequence: int, began: float) -> None:
        """In one go: what it is decided from is of one moment, and nothing older can come after it."""
        if obj is None:
            self._forget(key, sequence)
            return
        try:
            owner = self._owners.of(key, obj)
        except ValidationError as error:
            self._leave(key, obj["metadata"]["uid"], sequence)
            self.upkeep.decided(key, not_understood(error))
            return
        status = obj.get("status") or {}
        world = self._world(owner, status)
        memory = self._memory.get(key) or taken_over(owner, world, status)
        kinds = kinds_of(owner, world, memory.learned)
        plans = plan_replica(owner, world, memory, kinds)
        self._memory[key] = memory_of(plans, kinds.learned)
        self.fleet.want(key, Wish(wanted_of(plans), probes_of(world, plans), barred_of(world.strays)), sequence)
        self.told.decided((pod.uid for plan in plans for pod in plan.pods), began)
        before = self.decisions.get(key)
        self._metrics.planned(before.plans if before is not None else (), plans)
        self._recorder.tell(owner, happened(owner, world, plans))  # else what passes soon would go untold
        self.decisions[key] = decision = Decision(
            owner, world, plans, obj["metadata"]["generation"], self._owners.design(key)
        )
        self.upkeep.decided(key, decision)

    def _leave(self, key: Key, uid: str, sequence: int) -> None:
        """Its spec cannot be read: what was wanted stays; before anything was, what the nodes have."""
        if key in self.decisions and self.decisions[key].owner.uid == uid:
            self.fleet.looked(key, sequence)
        else:
            self.fleet.want(key, Wish(as_it_is(uid, self.fleet.agents())), sequence)

    def _forget(self, key: Key, sequence: int) -> None:
        self.fleet.want(key, Wish(), sequence)
        for table in (self.decisions, self._memory, self._contests):
            table.pop(key, None)
        self._owners.forget(key)
        self.queue.forget(key)
        self.upkeep.gone(key)

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
