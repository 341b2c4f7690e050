"""HTTP to one agent (wire/control.py), with a deadline per call and typed errors."""

from __future__ import annotations

from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from flashboot_agent.wire.control import Accepted, Desired, Observed, Problem

LONG_POLL_S = 25
M = TypeVar("M", bound=BaseModel)


class AgentError(Exception):
    """The agent does not answer, or answers nonsense."""


class AgentRefused(AgentError):
    """The agent refused, with a typed reason."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem


class AgentClient:
    def __init__(self, *, port: int, connect_s: float = 3.0, answer_s: float = 5.0) -> None:
        self._port = port
        self._answer_s = answer_s
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60)
        # trust_env off: a cluster's proxy settings are for the way out, not for the way to a pod.
        self._http = httpx.AsyncClient(
            limits=limits, timeout=httpx.Timeout(answer_s, connect=connect_s), trust_env=False
        )

    async def close(self) -> None:
        await self._http.aclose()

    def _url(self, ip: str, path: str) -> str:
        return f"http://{f'[{ip}]' if ':' in ip else ip}:{self._port}{path}"

    async def observed(self, ip: str, *, after: int, wait_s: int) -> Observed:
        timeout = httpx.Timeout(wait_s + self._answer_s, connect=3.0)
        params = {"after": after, "waitSeconds": wait_s}
        return await self._send(Observed, "GET", self._url(ip, "/v1/observed"), params=params, timeout=timeout)

    async def put(self, ip: str, desired: Desired) -> Accepted:
        headers = {"Content-Type": "application/json"}
        return await self._send(
            Accepted, "PUT", self._url(ip, "/v1/desired"), content=desired.to_json(), headers=headers
        )

    async def _send(self, model: type[M], method: str, url: str, **kwargs: object) -> M:
        try:
            response = await self._http.request(method, url, **kwargs)  # type: ignore[arg-type]
        except httpx.HTTPError as error:
            raise AgentError(f"{method} {url}: {type(error).__name__}: {error}") from error
        try:
            if response.status_code >= 400:
                raise AgentRefused(Problem.model_validate_json(response.content))
            return model.model_validate_json(response.content)
        except ValidationError as error:
            raise AgentError(
                f"{method} {url}: {response.status_code} with a body that makes no sense: {error}"
            ) from error
