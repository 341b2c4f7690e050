"""One agent's certificate, from the operator's side: brought when it has none that counts, renewed at half of its life.

An agent never asks; see wire/trust.py for the exchange. What fails is tried again, with the reason in the log: until it
works, the agent counts as silent.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from flashboot_agent.wire.base import now
from flashboot_agent.wire.trust import Certificate, CertificateRequest
from flashboot_operator.agents.client import AgentClient, AgentError

log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""Between two certificates of one agent, at least."""
MOST_PAUSE_S = 15.0


class NotSigned(AgentError):
    """The request was refused, or nobody could be asked about it."""


@dataclass(frozen=True)
class Signing:
    """How certificates are made."""

    sign: Callable[[str, CertificateRequest], Awaitable[Certificate]]
    """For the agent of this node. Raises NotSigned."""
    life: timedelta


class Enrolment:
    """`run` until cancelled. `ip` says where the agent is now, empty when nowhere."""

    def __init__(self, node: str, ip: Callable[[], str], client: AgentClient, signing: Signing) -> None:
        self._node = node
        self._ip = ip
        self._client = client
        self._signing = signing
        self._due_at: datetime | None = None
        """None: nothing is known of the agent yet."""
        self._news = asyncio.Event()

    def saw(self, expires_at: datetime | None) -> None:
        """What the agent says of its certificate; None: it has none that counts."""
        self._due(now() if expires_at is None else expires_at - self._signing.life / 2)

    def untrusted(self) -> None:
        """What it shows is not to be believed."""
        self._due(now())

    def _due(self, at: datetime) -> None:
        self._due_at = at
        self._news.set()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._until_due()
            try:
                await self._enrol()
                failures = 0
                await asyncio.sleep(PAUSE_S)
            except AgentError as error:
                failures += 1
                log.warning("agent not enrolled: %s", error, extra={"node": self._node, "failures": failures})
                await asyncio.sleep(min(MOST_PAUSE_S, 0.1 * 2 ** min(failures, 10)) * random.uniform(0.7, 1.0))

    async def _until_due(self) -> None:
        while self._due_at is None or self._due_at > now() or not self._ip():
            self._news.clear()
            wait = max(0.0, (self._due_at - now()).total_seconds()) if self._due_at is not None and self._ip() else None
            try:
                async with asyncio.timeout(wait):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _enrol(self) -> None:
        ip = self._ip()
        request = await self._client.certificate_request(self._node, ip)
        if request.node != self._node:
            raise NotSigned(f"the agent at {ip} says that it is node {request.node}")
        await self._client.put_certificate(self._node, ip, await self._signing.sign(self._node, request))
        self._due_at = now() + self._signing.life / 2
        log.info("agent enrolled", extra={"node": self._node, "ip": ip})
