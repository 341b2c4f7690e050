"""The leader's part in certificates: it keeps the CA, its own client certificate, and signs for agents it believes."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import NoReturn

from flashboot_agent.trust.credentials import Credentials
from flashboot_agent.wire.base import now
from flashboot_agent.wire.trust import Certificate, CertificateRequest
from flashboot_operator.agents.client import AgentClient
from flashboot_operator.agents.enrol import NotSigned
from flashboot_operator.core.authority import Authority, AuthorityDamaged, RequestRefused
from flashboot_operator.kube.authority import AuthorityStore
from flashboot_operator.kube.client import Kube, KubeError
from flashboot_operator.kube.tokens import TokenRefused, require_agent

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""Between two looks at the CA: a person may have added one or taken one away."""
REVIEWS = 16
"""TokenReviews at a time: a whole cluster may want certificates at once."""


class Trust:
    def __init__(self, kube: Kube, client: AgentClient, *, namespace: str, life: timedelta) -> None:
        self._kube = kube
        self._client = client
        self._namespace = namespace
        self._life = life
        self._store = AuthorityStore(kube, namespace)
        self._authority: Authority | None = None
        self._own_until: datetime | None = None
        self._signer_serial = 0
        self._reviews = asyncio.Semaphore(REVIEWS)

    async def ready(self) -> None:
        """Wait until there is a CA and we can show a certificate. How long that takes is the API server's matter."""
        while True:
            if await self._look():
                return
            await asyncio.sleep(1)

    async def keep(self) -> NoReturn:
        """Follow the CA, renew our own certificate."""
        while True:
            await asyncio.sleep(min(LOOK_S, self._life.total_seconds() / 4))
            await self._look()

    async def _look(self) -> bool:
        """False while nothing is known of a CA. One that was taken away stays in use: our own certificate is renewed
        under it, and so are those of the agents."""
        try:
            authority = await self._store.load(now())
        except (KubeError, AuthorityDamaged) as error:
            log.error("the CA can't be read or kept: %s", error)
            if self._authority is None:
                return False
            authority = self._authority
        at = now()
        serial = authority.signer(at).certificate.serial_number
        due = self._own_until is None or at > self._own_until - self._life / 2
        if (
            due
            or serial != self._signer_serial
            or self._authority is None
            or authority.bundle != self._authority.bundle
        ):
            certificate, key = authority.operator(at, self._life)
            self._client.identify(Credentials(certificate, key, authority.bundle))
            self._own_until, self._signer_serial = at + self._life, serial
        self._authority = authority
        return True

    async def sign(self, node: str, request: CertificateRequest) -> Certificate:
        """For the agent of a node that we see a pod of ours on. Raises NotSigned."""
        assert self._authority is not None
        try:
            async with self._reviews:
                await require_agent(self._kube, request.token, namespace=self._namespace, node=node)
            certificate = self._authority.sign_agent(request.csr.encode(), node, now(), self._life)
        except (TokenRefused, RequestRefused) as error:
            raise NotSigned(str(error)) from error
        except KubeError as error:
            raise NotSigned(f"the token from node {node} could not be reviewed: {error}") from error
        return Certificate(certificate=certificate.decode(), ca=self._authority.bundle.decode())
