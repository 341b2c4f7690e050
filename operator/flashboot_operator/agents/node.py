"""One node's agent: what it observes, and what it is told. An agent that does not answer is a state, never an error.

When a node may be told something: only after it has been heard, and after every ModelReplica that it holds something
of was looked at *with* what was heard. Else an operator that has just started would tell it a state in which the arena
that it keeps for others is missing, and the node would drop it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Protocol

from flashboot_agent.wire.desired import Desired
from flashboot_agent.wire.observed import Observed
from flashboot_operator.agents.client import LONG_POLL_S, AgentClient, AgentError, AgentRefused, AgentUntrusted
from flashboot_operator.agents.enrol import Enrolment, Signing
from flashboot_operator.agents.news import concerned, news
from flashboot_operator.agents.skew import Skew
from flashboot_operator.agents.wishes import Wanted
from flashboot_operator.core.facts import Key, Restart, restart_of
from flashboot_operator.core.fanout.pace import Sample, keep
from flashboot_operator.core.targets import sample_of

log = logging.getLogger(__name__)

GRACE_S = 3.0
"""An agent that fails for less than this still counts as answering: it may just be restarting."""
TRUST_S = 60.0
"""For this long the last word of a silent agent counts: its arenas are most likely still there."""
ACCUSATION_S = 30.0
"""How long a complaint about a parent weighs."""


class Voice(Protocol):
    """With what authority a node is told something."""

    @property
    def epoch(self) -> int: ...

    def next_revision(self) -> int:
        """Rises within the epoch, over all nodes."""
        ...

    async def raise_above(self, epoch: int) -> None:
        """An agent has seen this epoch."""
        ...


class NodeAgent:
    """`run` until cancelled."""

    def __init__(
        self,
        node: str,
        ip: str,
        *,
        client: AgentClient,
        voice: Voice,
        ttl_s: int,
        wanted: Callable[[str], Wanted | None],
        heard: Callable[[NodeAgent, set[Key] | None, set[Key]], None],
        told: Callable[[Desired], None] = lambda _: None,
        signing: Signing | None = None,
    ) -> None:
        self.node = node
        self.ip = ip
        self.observed: Observed | None = None
        self.gate: set[Key] | None = None
        """Keys that have to be looked at before the node may be told something; None: it was not heard yet."""
        self.gate_is_new = False
        self.first_word = asyncio.Event()
        self.put: Desired | None = None
        """The last state that it accepted."""
        self._client = client
        self._enrolment = Enrolment(node, lambda: self.ip, client, signing) if signing is not None else None
        self._voice = voice
        self._ttl_s = ttl_s
        self._wanted = wanted
        self._heard = heard
        self._told = told
        self._failing_since: float | None = time.monotonic()
        self._told_at = 0.0
        self._flags = (False, False)
        self.skew = Skew()
        self._blamed: dict[tuple[str, str, str], float] = {}
        self.samples: dict[str, tuple[Sample, ...]] = {}
        """arena that fills → what was said of it over the last seconds."""
        self._ordered: dict[str, float] = {}
        """arena → since when it has been told of a parent to pull it from, by our own clock."""
        self.restart: Restart | None = None
        """The last time that its process began anew."""
        self.changed = asyncio.Event()

    @property
    def silent_s(self) -> float:
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    @property
    def fresh(self) -> bool:
        return self.first_word.is_set() and self.silent_s < GRACE_S

    @property
    def trusted(self) -> bool:
        return self.observed is not None and self.silent_s < TRUST_S

    @property
    def last_seen(self) -> float:
        """Monotonic time of the last answer."""
        return self._failing_since if self._failing_since is not None else time.monotonic()

    def accused(self) -> frozenset[tuple[str, str]]:
        now = time.monotonic()
        return frozenset((arena, node) for (arena, node, _), at in self._blamed.items() if now - at < ACCUSATION_S)

    def ordered_s(self) -> dict[str, float]:
        """arena → for how long it has known a parent to pull it from."""
        now = time.monotonic()
        return {arena: now - since for arena, since in self._ordered.items()}

    def concerns(self) -> set[Key]:
        """ModelReplicas that the node holds something of."""
        return concerned(self.observed)

    def move(self, ip: str) -> None:
        """Its pod has another address now, or (empty) there is none. Its last word still counts for a while."""
        self.ip = ip
        self.gate = None
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._observe(), name=f"observe {self.node}")
            group.create_task(self._tell(), name=f"tell {self.node}")
            if self._enrolment is not None:
                group.create_task(self._enrolment.run(), name=f"enrol {self.node}")

    async def _observe(self) -> None:
        after, failures = -1, 0
        while True:
            began = time.monotonic()
            try:
                if not self.ip:
                    raise AgentError("there is no running agent pod on the node")
                seen = await self._client.observed(
                    self.node, self.ip, after=after, wait_s=0 if after < 0 else LONG_POLL_S
                )
                if seen.node != self.node:
                    raise AgentError(f"{self.ip} says that it is node {seen.node}, expected {self.node}")
            except AgentError as error:
                failures += 1
                if self._enrolment is not None and isinstance(error, AgentUntrusted):
                    self._enrolment.untrusted()
                self._fail(error)
                after = -1
                await asyncio.sleep(min(2.0, 0.1 * 2 ** min(failures, 8)) * random.uniform(0.7, 1.0))
                continue
            failures = 0
            self._take(seen)
            after = seen.counter
            # A long poll that is answered at once, each time, must not become a hot loop.
            await asyncio.sleep(max(0.0, 0.05 - (time.monotonic() - began)))

    def _fail(self, error: AgentError) -> None:
        self.skew.failed(error)
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            log.warning("agent does not answer: %s", error, extra={"node": self.node, "ip": self.ip})
        self.gate = None
        if self._flags != (self.fresh, self.trusted):
            self._flags = (self.fresh, self.trusted)
            self._heard(self, None, set())

    def _take(self, seen: Observed) -> None:
        before, self.observed = self.observed, seen
        self.skew.heard()
        back = self._failing_since is not None
        if back:
            log.info("agent answers", extra={"node": self.node, "ip": self.ip, "afterSeconds": round(self.silent_s, 1)})
        if self._enrolment is not None:
            self._enrolment.saw(seen.certificate_expires_at)
        self._failing_since, self._flags = None, (True, True)
        now = time.monotonic()
        present = {(a.arena, c.node, c.at.isoformat()) for a in seen.arenas for c in a.accusations}
        self._blamed = {mark: self._blamed.get(mark, now) for mark in present}
        same = {} if back or before is None or before.instance != seen.instance else self.samples
        self.samples = {
            a.arena: keep(same.get(a.arena, ()), sample_of(a, now)) for a in seen.arenas if a.state == "filling"
        }
        if before is not None and before.instance != seen.instance:
            self.restart = restart = restart_of(before, seen)
            log.info("agent restarted", extra={"node": self.node, "kept": len(restart.kept), "lost": len(restart.lost)})
        if back or self.gate is None or before is None or before.instance != seen.instance:
            self.gate, self.gate_is_new = self.concerns(), True
            self.changed.set()
        if back or before is None or (before.instance, before.counter) != (seen.instance, seen.counter):
            about = None if back or before is None or self.gate_is_new else news(before, seen)
            self._heard(self, about, concerned(before))
        self.first_word.set()
        if self.put is not None and (seen.epoch, seen.revision) != (self.put.epoch, self.put.revision):
            self.changed.set()

    async def _tell(self) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self._ttl_s / 3):
                    await self.changed.wait()
            except TimeoutError:
                pass
            self.changed.clear()
            wanted = self._wanted(self.node)
            if wanted is None or not self._needs(wanted):
                continue
            desired = Desired(
                epoch=self._voice.epoch,
                revision=self._voice.next_revision(),
                node=self.node,
                ttl_seconds=self._ttl_s,
                arenas=wanted.arenas,
                probes=wanted.probes,
                barred=wanted.barred,
            )
            try:
                await self._client.put(self.ip, desired)
            except AgentError as error:
                failures += 1
                await self._refused(error, failures)
                self.changed.set()
                continue
            failures = 0
            self.skew.obeyed()
            self.put, self._told_at = desired, time.monotonic()
            self._ordered = {
                a.arena: self._ordered.get(a.arena, self._told_at)
                for a in desired.arenas
                if any(x.parents for x in a.lanes)
            }
            self._told(desired)
            facts = {"node": self.node, "epoch": desired.epoch, "revision": desired.revision}
            log.info("node told", extra={**facts, "arenas": len(wanted.arenas), "probes": len(wanted.probes)})

    def _needs(self, wanted: Wanted) -> bool:
        put, seen = self.put, self.observed
        if put is None or Wanted(put.arenas, put.probes, put.barred) != wanted or put.epoch != self._voice.epoch:
            return True
        if time.monotonic() - self._told_at > self._ttl_s / 3 - 1:
            return True
        return seen is not None and seen.revision < put.revision and time.monotonic() - self._told_at > 2

    async def _refused(self, error: AgentError, failures: int) -> None:
        log.warning("node not told: %s", error, extra={"node": self.node, "failures": failures})
        self.skew.refused(error, self.observed)
        if isinstance(error, AgentRefused) and error.problem.reason == "StaleEpoch":
            await self._voice.raise_above(error.problem.epoch or self._voice.epoch)
        await asyncio.sleep(min(5.0, 0.05 * 2 ** min(failures, 8)) * random.uniform(0.7, 1.0))
