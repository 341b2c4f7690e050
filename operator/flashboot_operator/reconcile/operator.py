"""The operator as a whole: which parts there are, in which order they start, and what ends them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from aiohttp import web

from flashboot_operator.agents.client import AgentClient
from flashboot_operator.agents.enrol import Signing
from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.core.plan import ArenaPlan
from flashboot_operator.core.settings import Settings
from flashboot_operator.crdgen import served_schema
from flashboot_operator.kube.client import Kube, KubeError, load_configuration
from flashboot_operator.kube.events import Recorder
from flashboot_operator.kube.kopfside import KopfWatch
from flashboot_operator.kube.lease import Lease
from flashboot_operator.reconcile.controller import Controller
from flashboot_operator.reconcile.health import MAX_LAG_S, MAX_WATCH_AGE_S, LoopLag
from flashboot_operator.reconcile.http import Object, application, serve
from flashboot_operator.reconcile.live import LiveViews
from flashboot_operator.reconcile.metrics import Metrics
from flashboot_operator.reconcile.mirror import Mirror
from flashboot_operator.reconcile.objects import Objects
from flashboot_operator.reconcile.refusal import require_schema
from flashboot_operator.reconcile.trust import Trust

log = logging.getLogger(__name__)

SCHEMA_S = 30.0
"""How long the API server may take to serve our resource: a CRD that was just applied takes a moment."""
FIRST_WORDS_S = 5.0
"""How long a new operator waits for all agents before it decides: one of them may hold what others would load anew."""


class Operator:
    def __init__(self, settings: Settings, kube: Kube, kubeconfig: str | None, metrics: Metrics) -> None:
        self.settings = settings
        self.lag = LoopLag()
        self.lease = Lease(
            kube,
            namespace=settings.namespace,
            identity=settings.identity,
            lease_s=settings.lease_s,
            renew_deadline_s=settings.renew_deadline_s,
            renew_every_s=settings.renew_every_s,
        )
        self.recorder = Recorder(kube, instance=settings.identity, on_event=metrics.event)
        self.objects = Objects(kube)
        writes = settings.status_writes_per_second
        self.controller = Controller(kube, self.objects, self.recorder, metrics, writes_per_second=writes)
        client = AgentClient(port=settings.agent_port, tls=settings.tls == "mutual", on_call=metrics.agent_call)
        life = timedelta(seconds=settings.certificate_s)
        self.trust = Trust(kube, client, namespace=settings.namespace, life=life) if settings.tls == "mutual" else None
        self.fleet = Fleet(
            client,
            self.lease,
            ttl_s=settings.desired_ttl_s,
            on_change=self.controller.queue.mark,
            signing=Signing(self.trust.sign, life) if self.trust is not None else None,
            on_told=self.controller.told.acknowledged,
        )
        self.mirror = Mirror(
            kube,
            namespace=settings.namespace,
            mark=self.controller.on_workload,
            mark_all=self.controller.mark_all,
            endpoints=self._endpoints,
            on_bound=self.controller.told.bound,
            on_gone=self.controller.told.gone,
        )
        self.metrics = metrics
        metrics.read(self._gauges, self.fleet.last_seen)
        self.controller.mirror, self.controller.fleet = self.mirror, self.fleet
        self.controller.upkeep.mirror = self.mirror
        self.kopf = KopfWatch(self.controller.on_object, kubeconfig=kubeconfig)
        self.kube = kube
        self.leading = False

    def _endpoints(self, addresses: dict[str, str]) -> None:
        if self.leading:
            self.fleet.endpoints(addresses)

    async def run(self) -> None:
        """Until SIGTERM. Raises SchemaMismatch, LeaseLost, or whatever broke a part that must not break."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.kube.close)
            runner = await serve(self._http(), self.settings.http_host, self.settings.http_port)
            stack.push_async_callback(runner.cleanup)
            end_s = self.settings.lease_s + self.settings.renew_deadline_s
            await require_schema(
                self.kube, self.lease, self.recorder, served_schema(), wait_s=SCHEMA_S, deadline_s=end_s
            )
            tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self.lag.run(), name="loop lag")]
            tasks += [asyncio.create_task(r.run(), name=f"reflector {r.path}") for r in self.mirror.reflectors]
            stack.push_async_callback(_cancel, tasks)
            if not await _first(stop, self.lease.acquire()):
                return
            stack.push_async_callback(self.lease.release)
            self.lease.watchdog()
            log.info("leading", extra={"epoch": self.lease.epoch, "identity": self.settings.identity})
            tasks.append(asyncio.create_task(self.lease.keep(), name="lease"))
            if not await _first(stop, self.mirror.synced()):
                return
            if self.trust is None:
                log.warning("TLS is off: whoever reaches an agent may command it and read its arenas")
            elif not await _first(stop, self.trust.ready()):
                return
            self.leading = True
            stack.push_async_callback(self.fleet.close)
            self._endpoints(self.mirror.addresses())
            # Before any work: what is decided without the agents' words would be written into the status, a source
            # that is there would be missing from it, and the election would forget whom it had chosen.
            if not await _first(stop, self.fleet.all_heard(FIRST_WORDS_S)):
                return
            tasks += [
                asyncio.create_task(self.controller.queue.run(), name="looks"),
                asyncio.create_task(self.controller.upkeep.queue.run(), name="upkeep"),
                asyncio.create_task(self.recorder.run(), name="events"),
                asyncio.create_task(self._resync(), name="resync"),
                *([asyncio.create_task(self.trust.keep(), name="trust")] if self.trust is not None else []),
                asyncio.create_task(self.kopf.run(), name="kopf"),
            ]
            tasks.append(asyncio.create_task(self._own_signals(stop), name="signals"))
            stopped = asyncio.create_task(stop.wait(), name="stop")
            tasks.append(stopped)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.leading = False
            for task in done:
                if (error := task.exception()) is not None:
                    raise error
            log.info("ending", extra={"because": [t.get_name() for t in done]})

    async def _own_signals(self, stop: asyncio.Event) -> None:
        """kopf takes SIGTERM over when it starts, and takes five seconds to end; take it back."""
        await self.kopf.started.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await asyncio.Event().wait()

    async def _resync(self) -> None:
        """At first: open the fleet once all objects were looked at. Then: make up for whatever event was lost."""
        while True:
            try:
                found = await self.objects.list()
            except KubeError as error:
                log.warning("the ModelReplicas could not be listed: %s", error)
                await asyncio.sleep(1)
                continue
            self._endpoints(self.mirror.addresses())
            for key in found | self.objects.known():
                self.controller.queue.mark(key)
            if not self.fleet.open:
                sequence = self.fleet.sequence()
                self.controller.mark_all()
                await self.fleet.all_looked_at(found, sequence)
                self.fleet.open_up()
                log.info("every ModelReplica was looked at, nodes may be told", extra={"count": len(found)})
            self.fleet.prune(found)
            await asyncio.sleep(self.settings.resync_s)

    # Health

    def _http(self) -> web.Application:
        return application(
            health=self._health,
            ready=self._ready,
            live=LiveViews(self.controller, self.objects, self.fleet, self.lease),
            registry=self.metrics.registry,
        )

    def _health(self) -> tuple[bool, Object]:
        holding = self.lease.epoch >= 0
        facts: Object = {
            "loopLagSeconds": round(self.lag.lag_s, 3),
            "leaseAgeSeconds": round(self.lease.age_s, 1) if holding else None,
            "watchAgeSeconds": round(self.mirror.watch_age_s(), 1),
            "leading": self.leading,
            "epoch": self.lease.epoch,
        }
        ok = self.lag.lag_s < MAX_LAG_S and self.mirror.watch_age_s() < MAX_WATCH_AGE_S
        return ok and (not holding or self.lease.age_s < self.settings.lease_s), facts

    def _ready(self) -> tuple[bool, Object]:
        """A standby is ready to take over; a leader when it has looked at everything once."""
        synced = all(r.synced.is_set() for r in self.mirror.reflectors)
        ok = synced and (self.fleet.open or self.lease.epoch < 0)
        return ok, {"synced": synced, "leading": self.leading, "nodesMayBeTold": self.fleet.open}

    def _gauges(self) -> dict[str, float]:
        plans = [plan for decision in self.controller.decisions.values() for plan in decision.plans]
        return {
            "leading": float(self.leading),
            "epoch": self.lease.epoch,
            "lease_age_seconds": self.lease.age_s if self.lease.epoch >= 0 else 0.0,
            "watch_age_seconds": self.mirror.watch_age_s(),
            "loop_lag_seconds": self.lag.worst_s,
            "modelreplicas": len(self.controller.decisions),
            "queue_length": len(self.controller.queue),
            "upkeep_length": len(self.controller.upkeep.queue),
            "plan_arenas": len(plans),
            "plan_targets": sum(len(_targets(plan)) for plan in plans),
            "plan_edges": sum(len(edges) for plan in plans for edges in plan.lanes),
            "plan_slow": sum(len(plan.slow) for plan in plans),
        }


def _targets(plan: ArenaPlan) -> set[str]:
    return {child for edges in plan.lanes for child in edges}


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _first(stop: asyncio.Event, work: Coroutine[Any, Any, Any]) -> bool:
    """True when the work is done, False when the process was told to end before."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            return True
        return False
    finally:
        task.cancel()
        stopped.cancel()


async def run(settings: Settings, kubeconfig: str | None) -> None:
    metrics = Metrics()
    configuration = await load_configuration(kubeconfig)
    kube = Kube(configuration, timeout_s=settings.call_timeout_s, on_call=metrics.api_call)
    await Operator(settings, kube, kubeconfig, metrics).run()
