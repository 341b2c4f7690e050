"""Readiness of an engine's other pods: SGLang serves a dummy `/health` there and no `/ready`, which pods are probed by.

The pods of a group have one template, hence one readiness probe. SGLang starts the dummy server when the ranks of its
pod are up; from then on `/ready` says so too. Whether the whole engine takes requests only the first pod knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from flashboot_agent.engine.drain import MIDDLEWARE, Application, Message, Send

DUMMY_SERVER: Final = "sglang.srt.utils.common.launch_dummy_health_check_server"
"""SGLang calls it in the main process of a pod that is not the first, once its schedulers are up."""


def dummy_server(original: Any, *arguments: Any, **named: Any) -> Any:
    """Around DUMMY_SERVER."""
    from flashboot_agent.engine import plugin

    plugin.install({MIDDLEWARE: with_ready})
    return original(*arguments, **named)


def with_ready(original: Any, application: Any) -> Application:
    """Around MIDDLEWARE: what FastAPI serves, and `/ready`."""
    inner: Application = original(application)

    async def serve(scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/ready" and scope["method"] in ("GET", "HEAD"):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await inner(scope, receive, send)

    return serve
