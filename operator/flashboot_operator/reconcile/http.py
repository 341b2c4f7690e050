"""The operator's HTTP server: /healthz, /readyz, /metrics, and the live views of api/live.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from flashboot_operator.api.live import (
    MOST_BYTES,
    MOST_LISTED,
    Document,
    Listing,
    Nodes,
    Refusal,
    ReplicaView,
    Trees,
)

Object = dict[str, object]
State = Callable[[], tuple[bool, Object]]


class Live(Protocol):
    """Who knows. None: there is no such ModelReplica."""

    def listing(self, *, namespace: str | None, after: str | None, limit: int) -> Listing: ...

    def replica(self, namespace: str, name: str) -> ReplicaView | None: ...

    def trees(self, namespace: str, name: str, rank: str | None) -> Trees | None: ...

    def nodes(self, node: str | None) -> Nodes: ...


class Refused(Exception):
    def __init__(self, status: int, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.status = status
        self.refusal = refusal


def application(*, health: State, ready: State, live: Live, registry: CollectorRegistry) -> web.Application:
    def state(ask: State) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_: web.Request) -> web.Response:
            ok, facts = ask()
            return web.json_response(facts, status=200 if ok else 503)

        return answer

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def document(make: Callable[[web.Request], Document]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                body, status = _bounded(make(request)), 200
            except Refused as refused:
                body, status = refused.refusal.to_json(), refused.status
            return web.Response(body=body, status=status, content_type="application/json")

        return answer

    def every(request: web.Request) -> Document:
        query = request.query
        limit = min(_number(query.get("limit", str(MOST_LISTED))), MOST_LISTED)
        return live.listing(namespace=query.get("namespace"), after=query.get("after"), limit=limit)

    def one(request: web.Request) -> Document:
        return _found(request, live.replica(*_key(request)))

    def trees(request: web.Request) -> Document:
        return _found(request, live.trees(*_key(request), request.query.get("rank")))

    def nodes(request: web.Request) -> Document:
        return live.nodes(request.query.get("node"))

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", state(health)),
            web.get("/readyz", state(ready)),
            web.get("/metrics", metrics),
            web.get("/v1/nodes", document(nodes)),
            web.get("/v1/modelreplicas", document(every)),
            web.get("/v1/modelreplicas/{namespace}/{name}", document(one)),
            web.get("/v1/modelreplicas/{namespace}/{name}/trees", document(trees)),
        ]
    )
    return app


def _key(request: web.Request) -> tuple[str, str]:
    return request.match_info["namespace"], request.match_info["name"]


def _found(request: web.Request, document: Document | None) -> Document:
    if document is None:
        message = f"no ModelReplica {'/'.join(_key(request))} is known to this operator"
        raise Refused(404, Refusal(reason="NotFound", message=message))
    return document


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise Refused(400, Refusal(reason="BadRequest", message=f"limit={text[:20]}: must be 1 to {MOST_LISTED}"))
    return int(text)


def _bounded(document: Document) -> bytes:
    body = document.to_json()
    if len(body) > MOST_BYTES:
        advice = "ask for less: ?rank= of trees, ?node= of nodes, ?limit= of a list"
        message = f"the answer has {len(body)} bytes, more than {MOST_BYTES}; {advice}"
        raise Refused(413, Refusal(reason="TooLarge", message=message))
    return body


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Start; the caller cleans the runner up."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
