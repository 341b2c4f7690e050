"""The pods of an engine that are not the first answer `/ready`, and all else as SGLang does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flashboot_agent.engine import follower


def ask(scope: dict[str, Any]) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "SGLang's own"})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    served: Any = follower.with_ready(lambda app: application, object())
    asyncio.run(served(scope, None, send))
    return sent


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_ready_is_answered(method: str) -> None:
    start, body = ask({"type": "http", "method": method, "path": "/ready"})
    assert (start["status"], body["body"]) == (200, b"")


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "http", "method": "GET", "path": "/health"},
        {"type": "http", "method": "POST", "path": "/ready"},
        {"type": "lifespan"},
    ],
)
def test_everything_else_is_sglangs(scope: dict[str, Any]) -> None:
    assert ask(scope) == [{"type": "SGLang's own"}]
