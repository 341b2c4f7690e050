"""A thin client over `kubernetes.aio`: plain dictionaries, one deadline per call, typed errors.

KubeError                   status, reason, message
├── NotFound                404
├── Conflict                409; AlreadyExists is one of them
├── Invalid                  400, 422: the same call will fail again
├── Forbidden               401, 403: rights are missing
├── Gone                    410: the watch's version is too old
└── Unavailable             429, 5xx, no connection, deadline; may carry retry_after
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as kube_client
from kubernetes.aio import config as kube_config

from flashboot_operator.core.calls import Call, call_of

Object = dict[str, Any]
FIELD_MANAGER = "flashboot-operator"
OnCall = Callable[[Call, str, float], None]
"""Called after each call with what it was about, its status code (or why there was none) and its seconds."""
LONGEST_RETRY_S = 60.0
"""No server keeps us away for longer than this at a time."""
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


class KubeError(Exception):
    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class NotFound(KubeError):
    pass


class Conflict(KubeError):
    pass


class Invalid(KubeError):
    pass


class Forbidden(KubeError):
    pass


class Gone(KubeError):
    pass


class Unavailable(KubeError):
    pass


NOT_TYPED = "failed to create typed patch object"
"""So the API server says, with 500, that a body is nothing it can apply: a list has one key twice, say."""

_BY_STATUS: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Unavailable,
}


def error_of(status: int, text: str, retry_after: str | None = None) -> KubeError:
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 else KubeError)
    if status == 500 and NOT_TYPED in str(body.get("message")):
        kind = Invalid
    wait = min(float(retry_after), LONGEST_RETRY_S) if retry_after and retry_after.isdigit() else None
    return kind(status, str(body.get("reason") or "Unknown"), str(body.get("message") or text[:300]), wait)


async def load_configuration(kubeconfig: str | None, *, context: str | None = None) -> kube_client.Configuration:
    """From this kubeconfig when there is one, else from the pod's service account."""
    configuration = kube_client.Configuration()
    if kubeconfig:
        await kube_config.load_kube_config(
            config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
        )
    else:
        kube_config.load_incluster_config(client_configuration=configuration)
    return configuration


class Kube:
    """All methods raise KubeError and nothing else."""

    def __init__(
        self, configuration: kube_client.Configuration, *, timeout_s: float, on_call: OnCall = lambda *_: None
    ) -> None:
        self._api = kube_client.ApiClient(configuration)
        self._timeout_s = timeout_s
        self._on_call = on_call

    async def close(self) -> None:
        await self._api.close()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        query: Mapping[str, Any] | None = None,
        body: Object | None = None,
        content: str = "",
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        if body is not None:
            headers["Content-Type"] = content
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        answer = await self._api.rest_client.request(method, url, headers=headers, body=body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Object | None = None,
        content: str = "application/json",
        timeout_s: float | None = None,
    ) -> Object:
        limit = timeout_s or self._timeout_s
        began, code = time.monotonic(), "cancelled"
        try:
            async with asyncio.timeout(limit):
                response = await self._send(
                    method, path, timeout=aiohttp.ClientTimeout(total=limit), query=query, body=body, content=content
                )
                text = await response.text()
            code = str(response.status)
        except TimeoutError:
            code = "timeout"
            raise Unavailable(0, "Timeout", f"{method} {path}: no answer within {limit} s") from None
        except (aiohttp.ClientError, OSError) as error:
            code = "unreachable"
            raise Unavailable(0, "Unreachable", f"{method} {path}: {error}") from error
        finally:
            self._on_call(call_of(method, path), code, time.monotonic() - began)
        if response.status >= 400:
            raise error_of(response.status, text, response.headers.get("Retry-After"))
        try:
            result: Object = json.loads(text)
        except ValueError as error:
            raise Unavailable(response.status, "NoJson", f"{method} {path}: {error}") from error
        return result

    async def get(self, path: str, **query: Any) -> Object:
        return await self.call("GET", path, query=query)

    async def create(self, path: str, body: Object) -> Object:
        return await self.call("POST", path, body=body, query={"fieldManager": FIELD_MANAGER})

    async def replace(self, path: str, body: Object, *, timeout_s: float | None = None) -> Object:
        return await self.call("PUT", path, body=body, query={"fieldManager": FIELD_MANAGER}, timeout_s=timeout_s)

    async def merge(self, path: str, body: Object) -> Object:
        return await self.call("PATCH", path, body=body, content=MERGE, query={"fieldManager": FIELD_MANAGER})

    async def delete(self, path: str, *, uid: str, grace_s: int | None = None) -> Object:
        """The object of this UID; Conflict when another one has its name. What it owns goes after it. `grace_s`: of a
        pod, other than what its spec says."""
        body: Object = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        return await self.call("DELETE", path, body=body)

    async def apply(self, path: str, body: Object, *, force: bool = True, dry_run: bool = False) -> Object:
        """Server-side apply; what we say, we own. force: also what others say; else that is a Conflict. dry_run: the
        API server checks it and keeps nothing."""
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower(), **({"dryRun": "All"} if dry_run else {})}
        return await self.call("PATCH", path, body=body, content=APPLY, query=query)

    async def watch(self, path: str, *, query: Mapping[str, Any], idle_s: float) -> AsyncIterator[Object]:
        """Frames of a watch. Raises Unavailable after `idle_s` without one: a silent connection may be a dead one."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s)
        response: aiohttp.ClientResponse | None = None
        began = time.monotonic()
        try:
            try:
                async with asyncio.timeout(self._timeout_s):
                    response = await self._send("GET", path, timeout=timeout, query={**query, "watch": "true"})
            finally:
                code = str(response.status) if response is not None else "unreachable"
                self._on_call(call_of("GET", path, watch=True), code, time.monotonic() - began)
            if response.status >= 400:
                async with asyncio.timeout(self._timeout_s):
                    raise error_of(response.status, await response.text(), response.headers.get("Retry-After"))
            while True:
                async with asyncio.timeout(idle_s):
                    line = await _line(response.content)
                if not line:
                    return
                frame: Object = json.loads(line)
                if frame.get("type") == "ERROR":
                    status = frame.get("object") or {}
                    raise error_of(int(status.get("code") or 500), json.dumps(status))
                yield frame
        except TimeoutError:
            raise Unavailable(0, "Timeout", f"watch of {path}: nothing heard for {idle_s} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(0, "Broken", f"watch of {path}: {error!r}") from error
        finally:
            if response is not None:
                response.close()


async def _line(content: aiohttp.StreamReader) -> bytes:
    """One line however long; aiohttp's readline gives up at its buffer's size."""
    parts = []
    while True:
        part = await content.readuntil(b"\n")
        parts.append(part)
        if not part or part.endswith(b"\n"):
            return b"".join(parts)
