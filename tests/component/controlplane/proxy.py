"""A proxy between the operator and the API server: counts every call, and answers some of them itself, as told.

Plain HTTP towards the operator, so that nothing but the server's address differs in its kubeconfig.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from flashboot_operator.core.calls import Call, call_of
from tests.component.controlplane.apiserver import ApiServer, free_port

_HOP = {"host", "transfer-encoding", "connection", "content-length", "content-encoding"}


@dataclass(frozen=True)
class Fault:
    """Calls of these methods to paths with this in them are answered with the status."""

    methods: str
    path: str
    status: int
    headers: tuple[tuple[str, str], ...] = ()

    def hits(self, method: str, path: str) -> bool:
        return re.fullmatch(self.methods, method) is not None and re.search(self.path, path) is not None


@dataclass(frozen=True)
class Seen:
    at: float
    method: str
    path: str
    call: Call
    status: int


@dataclass
class Proxy:
    api: ApiServer
    port: int = field(default_factory=free_port)
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    _open: dict[int, web.Request] = field(default_factory=dict)

    def cut(self) -> None:
        """Break every call that is under way, watches above all."""
        for request in self._open.values():
            if request.transport is not None:
                request.transport.abort()

    def kubeconfig(self, file: Path) -> Path:
        """The operator's, by way of here."""
        config = json.loads(self.api.operators_kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        file.write_text(json.dumps(config))
        return file

    def since(self, at: float) -> list[Seen]:
        return [seen for seen in self.seen if seen.at >= at]

    def tally(self, at: float) -> Counter[str]:
        return Counter(f"{seen.call.verb} {seen.call.resource} {seen.status}" for seen in self.since(at))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        connector = aiohttp.TCPConnector(ssl=False, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._http:
            app = web.Application(client_max_size=16 << 20)
            app.router.add_route("*", "/{path:.*}", self._answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = call_of(request.method, request.path, watch=request.query.get("watch") in ("true", "1"))
        fault = next((f for f in self.faults if f.hits(request.method, request.path_qs)), None)
        if fault is not None:
            self._saw(request, call, fault.status)
            said = {"kind": "Status", "reason": "Storm", "message": "as the test wants it", "code": fault.status}
            return web.json_response(said, status=fault.status, headers=dict(fault.headers))
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        body = await request.read()
        self._open[id(request)] = request
        try:
            return await self._pass_on(request, call, headers, body)
        finally:
            del self._open[id(request)]

    async def _pass_on(
        self, request: web.Request, call: Call, headers: dict[str, str], body: bytes
    ) -> web.StreamResponse:
        url, timeout = self.api.url + request.path_qs, aiohttp.ClientTimeout(total=None)
        async with self._http.request(
            request.method, url, headers=headers, data=body or None, timeout=timeout
        ) as theirs:
            self._saw(request, call, theirs.status)
            passed = {k: v for k, v in theirs.headers.items() if k.lower() not in _HOP - {"content-encoding"}}
            ours = web.StreamResponse(status=theirs.status, headers=passed)
            try:
                await ours.prepare(request)
                async for part in theirs.content.iter_any():
                    await ours.write(part)
                await ours.write_eof()
            except ConnectionError:
                pass  # Whoever asked has gone, as it may; its watch ends here.
            return ours

    def _saw(self, request: web.Request, call: Call, status: int) -> None:
        self.seen.append(Seen(time.monotonic(), request.method, request.path, call, status))
