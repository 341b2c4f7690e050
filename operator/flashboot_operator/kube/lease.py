"""The Lease: at most one operator acts, and every start of an operator has an epoch of its own.

`leaseTransitions` is the epoch. It is raised with every take-over, also by the same holder after a restart; each write
carries the resourceVersion that it is based on, so that of two contenders one loses. Three things end the process: the
Lease names another holder or epoch, it could not be renewed within the deadline, or (a thread of its own sees to that,
in case the event loop hangs) the process slept through it.

A Lease that somebody deleted is made again with the epoch that we hold. After a restart the epoch may then be lower
than what agents have seen; they say so, and `raise_above` puts it right.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from datetime import UTC, datetime

from flashboot_operator.kube.client import Conflict, Kube, KubeError, NotFound, Object

log = logging.getLogger(__name__)

NAME = "flashboot-operator"
HIGHEST = 1 << 30
"""Epoch that an agent is believed. A Lease counts to 2³¹ − 1: raised to that by one broken node, none could follow."""


class LeaseLost(Exception):
    """Another operator acts; this one has to end."""


def _micro_now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Lease:
    def __init__(
        self, kube: Kube, *, namespace: str, identity: str, lease_s: int, renew_deadline_s: float, renew_every_s: float
    ) -> None:
        self._kube = kube
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._folder}/{NAME}"
        self._identity = identity
        self._lease_s = lease_s
        self._renew_deadline_s = renew_deadline_s
        self._renew_every_s = renew_every_s
        self._object: Object = {}
        self._lock = asyncio.Lock()
        self._renewed = time.monotonic()
        self._stop = threading.Event()
        self.epoch = -1

    @property
    def age_s(self) -> float:
        """Seconds since the last renewal."""
        return time.monotonic() - self._renewed

    def _spec(self, epoch: int) -> Object:
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._lease_s,
            "renewTime": _micro_now(),
            "leaseTransitions": epoch,
        }
        acquired = (self._object.get("spec") or {}).get("acquireTime")
        return {**spec, "acquireTime": acquired if epoch == self.epoch and acquired else spec["renewTime"]}

    async def acquire(self) -> int:
        """Wait until the Lease is ours; returns the epoch. How long others hold it is their matter, so no deadline."""
        seen, since = "", time.monotonic()
        while True:
            began = time.monotonic()
            try:
                current = await self._kube.get(self._path)
                spec = current.get("spec") or {}
                version = current["metadata"]["resourceVersion"]
                if version != seen:
                    seen, since = version, time.monotonic()
                holder = spec.get("holderIdentity") or ""
                expired = time.monotonic() - since > (spec.get("leaseDurationSeconds") or self._lease_s)
                if holder in ("", self._identity) or expired:
                    await self._take(current, int(spec.get("leaseTransitions") or 0) + 1, began)
                    return self.epoch
                log.info("another operator holds the lease, standing by", extra={"holder": holder})
            except NotFound:
                try:
                    await self._create(1, began)
                    return self.epoch
                except KubeError as error:
                    log.warning("the lease could not be made: %s", error)
            except KubeError as error:
                log.warning("the lease could not be taken: %s", error)
            await asyncio.sleep(self._renew_every_s)

    async def _create(self, epoch: int, began: float) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": NAME},
            "spec": self._spec(epoch),
        }
        self._object = await self._kube.create(self._folder, body)
        self.epoch, self._renewed = epoch, began

    async def _take(self, current: Object, epoch: int, began: float) -> None:
        body = {**current, "spec": {**(current.get("spec") or {}), **self._spec(epoch)}}
        self._object = await self._kube.replace(self._path, body, timeout_s=self._renew_deadline_s / 2)
        self.epoch, self._renewed = epoch, began

    async def keep(self) -> None:
        """Renew for ever.

        Raises:
            LeaseLost: another operator has it, or it could not be renewed in time.
        """
        while True:
            await asyncio.sleep(self._renew_every_s)
            async with self._lock:
                try:
                    await self._renew()
                except KubeError as error:
                    log.warning("the lease was not renewed: %s", error, extra={"ageSeconds": round(self.age_s, 1)})
            if self.age_s > self._renew_deadline_s:
                raise LeaseLost(f"the lease could not be renewed for {self.age_s:.1f} s")

    async def _renew(self) -> None:
        began = time.monotonic()
        try:
            await self._take(self._object, self.epoch, began)
        except (NotFound, Conflict):  # A write to what was deleted is a conflict too: there is nothing of that version.
            try:
                await self._reread()
            except NotFound:
                log.warning("the lease was deleted, making it again", extra={"epoch": self.epoch})
                await self._create(self.epoch, began)

    async def _reread(self) -> None:
        """Take over the stored version of a Lease that is still ours."""
        current = await self._kube.get(self._path)
        spec = current.get("spec") or {}
        if spec.get("holderIdentity") != self._identity or spec.get("leaseTransitions") != self.epoch:
            holder, epoch = spec.get("holderIdentity"), spec.get("leaseTransitions")
            raise LeaseLost(f"{holder} holds the lease at epoch {epoch}, ours was {self.epoch}")
        self._object = current

    async def raise_above(self, epoch: int) -> int:
        """An agent has seen `epoch`: go above it, if the Lease is still ours.

        Raises:
            LeaseLost: it is not.
            KubeError: not possible now; ask again.
            ValueError: no operator can have had that epoch.
        """
        if epoch > HIGHEST:
            raise ValueError(f"epoch {epoch} is more than {HIGHEST}: remove desired.json of the agent that says so")
        async with self._lock:
            if self.epoch > epoch:
                return self.epoch
            began = time.monotonic()
            try:
                await self._reread()
                await self._take(self._object, epoch + 1, began)
            except NotFound:
                await self._create(epoch + 1, began)
            log.warning("an agent has seen a higher epoch, raised ours", extra={"seen": epoch, "epoch": self.epoch})
            return self.epoch

    async def release(self) -> None:
        """Let the next operator start at once; best effort, on the way out."""
        self._stop.set()
        if self.epoch < 0:
            return
        try:
            async with asyncio.timeout(2), self._lock:
                body = {**self._object, "spec": {**self._spec(self.epoch), "holderIdentity": ""}}
                await self._kube.replace(self._path, body)
        except (KubeError, TimeoutError) as error:
            log.warning("the lease was not released: %s", error)

    def watchdog(self) -> None:
        """Start the thread that ends the process when the renewal is overdue, even if the event loop hangs."""

        def guard() -> None:
            while not self._stop.wait(0.5):
                if self.age_s > self._renew_deadline_s + 1:
                    sys.stderr.write(f"flashboot-operator: the lease was not renewed for {self.age_s:.1f} s; ending\n")
                    sys.stderr.flush()
                    os._exit(3)

        threading.Thread(target=guard, name="lease-watchdog", daemon=True).start()
