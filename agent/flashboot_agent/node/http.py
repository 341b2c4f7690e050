"""The control API (wire/control.py), health and metrics over HTTP.

With TLS, `/v1/` is for a client whose verified certificate names the operator, and for nobody else; probes and metrics
need no certificate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from pydantic import ValidationError

from flashboot_agent.core.errors import (
    BadRequest,
    FlashBootError,
    InsufficientMemory,
    NotReady,
    PeerRefused,
    StaleEpoch,
    UnknownArena,
    WrongNode,
)
from flashboot_agent.logs import Log
from flashboot_agent.node.desired import error_text
from flashboot_agent.node.metrics import Metrics
from flashboot_agent.node.observe import observed, observed_arenas
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire.base import WireModel
from flashboot_agent.wire.desired import Desired
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.trust import OPERATOR_URI, Certificate

log = Log(__name__)

MAX_BODY: Final = 16 << 20
MOST_WAIT_SECONDS: Final = 60.0
STATUS: Final[dict[type[FlashBootError], int]] = {
    BadRequest: 400,
    PeerRefused: 403,
    UnknownArena: 404,
    StaleEpoch: 409,
    WrongNode: 409,
    NotReady: 503,
    InsufficientMemory: 507,
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(node: NodeState, metrics: Metrics, not_ready: Callable[[], str | None]) -> web.Application:
    """`not_ready()` says why this agent is not ready, or None."""
    control = _Control(node, metrics, not_ready)
    middlewares = [_problems] if node.identity is None else [_problems, _operator_only]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY)
    app.add_routes(
        [
            web.put("/v1/desired", control.put_desired),
            web.get("/v1/observed", control.get_observed),
            web.get("/v1/arenas/{arena}", control.get_arena),
            web.get("/healthz", control.healthz),
            web.get("/readyz", control.readyz),
            web.get("/metrics", control.metrics),
        ]
    )
    if node.identity is not None:
        app.add_routes(
            [web.get("/v1/certificate", control.get_certificate), web.put("/v1/certificate", control.put_certificate)]
        )
    return app


class _Control:
    def __init__(self, node: NodeState, metrics: Metrics, not_ready: Callable[[], str | None]) -> None:
        self._node = node
        self._metrics = metrics
        self._not_ready = not_ready

    async def put_desired(self, request: web.Request) -> web.StreamResponse:
        try:
            desired = Desired.model_validate_json(await request.read())
        except ValidationError as error:
            raise BadRequest(error_text(error)) from error
        before = self._node.desired.current
        accepted = self._node.desired.accept(desired)
        if before is None or before != desired:
            log.info("desired state taken", epoch=desired.epoch, revision=desired.revision, arenas=len(desired.arenas))
            self._node.board.changed()
        return _json(accepted)

    async def get_observed(self, request: web.Request) -> web.StreamResponse:
        after = _number(request, "after", -1)
        seconds = min(float(_number(request, "waitSeconds", 0)), MOST_WAIT_SECONDS)
        self._require_known()
        if after <= self._node.board.counter:  # else it speaks of another instance, and is told at once
            await self._node.board.wait(after, seconds)
        return _json(observed(self._node))

    async def get_arena(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["arena"]
        self._require_known()
        arena = next((arena for arena in observed_arenas(self._node) if arena.arena == name), None)
        if arena is None:
            raise UnknownArena(f"{name} is not on node {self._node.settings.node}")
        return _json(arena)

    def _require_known(self) -> None:
        """To say "no arenas" before the holder was asked could make the operator load what is here."""
        if not self._node.known:
            raise NotReady(f"node {self._node.settings.node} does not know yet what it holds: {self._not_ready()}")

    async def get_certificate(self, _: web.Request) -> web.StreamResponse:
        assert self._node.identity is not None
        return _json(self._node.identity.request())

    async def put_certificate(self, request: web.Request) -> web.StreamResponse:
        assert self._node.identity is not None
        try:
            answer = Certificate.model_validate_json(await request.read())
        except ValidationError as error:
            raise BadRequest(error_text(error)) from error
        until = await asyncio.to_thread(self._node.identity.credentials.install, answer)
        log.info("certificate taken", until=str(until))
        self._node.board.changed()
        return web.Response()

    async def healthz(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def readyz(self, _: web.Request) -> web.StreamResponse:
        why = self._not_ready()
        return web.Response(text="ok\n") if why is None else web.Response(status=503, text=why + "\n")

    async def metrics(self, _: web.Request) -> web.StreamResponse:
        body = self._metrics.text()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal is a Problem, the framework's own ones included."""
    try:
        return await handler(request)
    except FlashBootError as error:
        return _json(error.problem(), STATUS.get(type(error), 500))
    except web.HTTPException as error:
        if error.status < 400:
            raise
        message = f"{request.method} {request.path}: {error.reason}"
        return _json(Problem(reason="BadRequest", message=message[:4096]), error.status)


@web.middleware
async def _operator_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.path.startswith("/v1/"):
        shown = request.transport.get_extra_info("peercert") if request.transport is not None else None
        names = [value for kind, value in (shown or {}).get("subjectAltName", ()) if kind == "URI"]
        if OPERATOR_URI not in names:
            who = f"a client with a certificate for {names}" if shown else "a client without a certificate"
            raise PeerRefused(f"{request.method} {request.path} is for {OPERATOR_URI} only, not for {who}")
    return await handler(request)


def _json(message: WireModel, status: int = 200) -> web.Response:
    return web.Response(status=status, body=message.to_json(), content_type="application/json")


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise BadRequest(f"{name} is not a whole number: {text[:100]!r}") from None
