"""HTTP to one agent (wire/control.py) over mutual TLS, with a deadline per call and typed errors.

Two ways: the normal one, which believes only an agent whose certificate names its node, and one for
`/v1/certificate` alone, which believes anybody, since nothing secret goes that way (wire/trust.py).
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from flashboot_agent.trust.credentials import Credentials
from flashboot_agent.trust.tls import client_context
from flashboot_agent.wire.control import PROTOCOL
from flashboot_agent.wire.desired import Accepted, Desired
from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.trust import Certificate, CertificateRequest
from flashboot_operator.agents.connections import Connections

LONG_POLL_S = 25
MOST_ANSWER = 64 << 20
"""Bytes; what an agent with thousands of arenas says has a third of it."""
JSON = {"Content-Type": "application/json"}
M = TypeVar("M", bound=BaseModel)
OnCall = Callable[[str, str, float], None]
"""Called after each call with what was asked for, how it ended (ok, refused, untrusted, failed) and its seconds."""


class AgentError(Exception):
    """The agent does not answer, or answers nonsense."""


class AgentUntrusted(AgentError):
    """It has no certificate that we believe; it needs a new one."""


class AgentSkewed(AgentError):
    """It speaks, and not as this operator does: it is of another version."""


class AgentRefused(AgentError):
    """The agent refused, with a typed reason."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem


class AgentClient:
    """With `tls`, nothing is sent before `identify` gave it something to show."""

    def __init__(
        self,
        *,
        port: int,
        tls: bool = False,
        connect_s: float = 3.0,
        answer_s: float = 5.0,
        on_call: OnCall = lambda *_: None,
    ) -> None:
        self._port = port
        self._scheme = "https" if tls else "http"
        self._connect_s = connect_s
        self._answer_s = answer_s
        self._on_call = on_call
        self._http = None if tls else Connections(None)
        self._bootstrap: Connections | None = None
        self._retiring: dict[asyncio.Task[None], Connections] = {}

    def identify(self, credentials: Credentials) -> None:
        """New connections use these; calls that run end over their old ones."""
        own, key = credentials.certificate, credentials.key
        old = [each for each in (self._http, self._bootstrap) if each is not None]
        self._http = Connections(client_context(own, key, credentials.ca))
        self._bootstrap = Connections(client_context(own, key, None))
        for connections in old:
            task = asyncio.create_task(self._retire(connections))
            self._retiring[task] = connections
            task.add_done_callback(lambda done: self._retiring.pop(done, None))

    async def close(self) -> None:
        retiring = dict(self._retiring)
        for task in retiring:
            task.cancel()
        await asyncio.gather(*retiring, return_exceptions=True)
        for connections in (self._http, self._bootstrap, *retiring.values()):
            if connections is not None:
                await connections.close()

    async def observed(self, node: str, ip: str, *, after: int, wait_s: int) -> Observed:
        path = f"/v1/observed?after={after}&waitSeconds={wait_s}"
        content = await self._call(self._http, "GET", node, ip, path, wait_s=wait_s)
        try:
            return Observed.model_validate_json(content)
        except ValidationError as error:
            raise _not_understood(content, error) from error

    async def put(self, ip: str, desired: Desired) -> Accepted:
        body = desired.to_json()
        return _parsed(Accepted, await self._call(self._http, "PUT", desired.node, ip, "/v1/desired", body=body))

    async def certificate_request(self, node: str, ip: str) -> CertificateRequest:
        return _parsed(CertificateRequest, await self._call(self._bootstrap, "GET", node, ip, "/v1/certificate"))

    async def put_certificate(self, node: str, ip: str, certificate: Certificate) -> None:
        await self._call(self._bootstrap, "PUT", node, ip, "/v1/certificate", body=certificate.to_json())

    def _url(self, ip: str, path: str) -> str:
        return f"{self._scheme}://{f'[{ip}]' if ':' in ip else ip}:{self._port}{path}"

    async def _retire(self, connections: Connections) -> None:
        """Close them once the longest call that may use one is over."""
        await asyncio.sleep(LONG_POLL_S + self._connect_s + self._answer_s)
        await connections.close()

    async def _call(
        self,
        connections: Connections | None,
        method: str,
        node: str,
        ip: str,
        path: str,
        *,
        body: bytes | None = None,
        wait_s: int = 0,
    ) -> bytes:
        """The body of the answer. `wait_s`: how long the agent was asked to wait."""
        began, outcome = time.monotonic(), "failed"
        try:
            content = await self._exchange(connections, method, node, ip, path, body=body, wait_s=wait_s)
            outcome = "ok"
            return content
        except AgentUntrusted:
            outcome = "untrusted"
            raise
        except AgentRefused:
            outcome = "refused"
            raise
        finally:
            kind = path.removeprefix("/v1/").partition("?")[0]
            self._on_call(kind, outcome, time.monotonic() - began)

    async def _exchange(
        self,
        connections: Connections | None,
        method: str,
        node: str,
        ip: str,
        path: str,
        *,
        body: bytes | None,
        wait_s: int,
    ) -> bytes:
        url = self._url(ip, path)
        if connections is None:
            raise AgentError(f"{method} {url}: the operator has no certificate to show yet")
        whole = wait_s + self._connect_s + self._answer_s
        try:
            async with (
                asyncio.timeout(whole),
                connections.session().request(
                    method,
                    url,
                    data=body,
                    headers=JSON if body else None,
                    timeout=aiohttp.ClientTimeout(sock_connect=self._connect_s),
                    server_hostname=node,
                    allow_redirects=False,
                ) as response,
            ):
                content = bytearray()
                async for part in response.content.iter_any():
                    content += part
                    if len(content) > MOST_ANSWER:
                        raise AgentError(f"{method} {url}: an answer of more than {MOST_ANSWER} bytes")
        except aiohttp.ClientError as error:
            kind = AgentUntrusted if _is_about_trust(error) else AgentError
            raise kind(f"{method} {url}: {type(error).__name__}: {error}") from error
        except TimeoutError:
            raise AgentError(f"{method} {url}: no whole answer within {whole:.0f} s") from None
        except OSError as error:
            raise AgentError(f"{method} {url}: {type(error).__name__}: {error}") from error
        if response.status >= 400:
            raise AgentRefused(_parsed(Problem, bytes(content)))
        return bytes(content)


def _parsed(model: type[M], content: bytes) -> M:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise AgentError(f"an answer that is no {model.__name__}: {error}") from error


class _Greeting(BaseModel):
    """What every protocol has."""

    protocol: int
    version: str


def _not_understood(content: bytes, error: ValidationError) -> AgentError:
    try:
        said = _Greeting.model_validate_json(content)
    except ValidationError:
        return AgentError(f"an answer that is no Observed: {error}")
    if said.protocol == PROTOCOL:
        first = error.errors()[0]
        what = f"says what this operator does not understand ({'.'.join(map(str, first['loc']))}: {first['msg']})"
    else:
        what = f"speaks protocol {said.protocol}, this operator {PROTOCOL}"
    return AgentSkewed(f"the agent, version {said.version}, {what}")


def _is_about_trust(error: BaseException | None) -> bool:
    """Whether the agent's certificate is at the root of it."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
