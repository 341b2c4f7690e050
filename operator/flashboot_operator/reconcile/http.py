"""The operator's HTTP server: /healthz, /readyz, /metrics, and the live views.

/v1/modelreplicas/{namespace}/{name} tells of one ModelReplica; /v1/nodes gives the last word of every agent, since an
agent answers nobody but the operator.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Object = dict[str, object]


def application(
    *,
    health: Callable[[], tuple[bool, Object]],
    ready: Callable[[], tuple[bool, Object]],
    view: Callable[[str, str], Object | None],
    names: Callable[[], list[Object]],
    nodes: Callable[[], list[Object]],
    registry: CollectorRegistry,
) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        ok, facts = health()
        return web.json_response(facts, status=200 if ok else 503)

    async def readyz(_: web.Request) -> web.Response:
        ok, facts = ready()
        return web.json_response(facts, status=200 if ok else 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def one(request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = view(namespace, name)
        if found is None:
            message = f"no ModelReplica {namespace}/{name} is known to this operator"
            return web.json_response({"reason": "NotFound", "message": message}, status=404)
        return web.json_response(found)

    async def every(_: web.Request) -> web.Response:
        return web.json_response({"items": names()})

    async def agents(_: web.Request) -> web.Response:
        return web.json_response({"items": nodes()})

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
            web.get("/v1/nodes", agents),
            web.get("/v1/modelreplicas", every),
            web.get("/v1/modelreplicas/{namespace}/{name}", one),
        ]
    )
    return app


async def serve(app: web.Application, host: str, port: int) -> web.AppRunner:
    """Start; the caller cleans the runner up."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner
