"""The reflector against a server that ends every watch at once, in each manner: it must not spin."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flashboot_operator.kube.client import Gone, KubeError, Object, Unavailable
from flashboot_operator.kube.reflector import Reflector


class Unkind:
    """Lists fine, ends each watch at once; counts."""

    def __init__(self, error: KubeError | None, frames: int = 0) -> None:
        self.error = error
        self.frames = frames
        self.calls: Counter[str] = Counter()

    async def get(self, path: str, **query: Any) -> Object:
        self.calls["list"] += 1
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    async def watch(self, path: str, **query: Any) -> AsyncIterator[Object]:
        self.calls["watch"] += 1
        for number in range(self.frames):
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(number + 2)}}}
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "server",
    [
        Unkind(None),
        Unkind(None, frames=1),
        Unkind(Gone(410, "Gone", "too old")),
        Unkind(Gone(410, "Gone", "too old"), frames=1),
        Unkind(Unavailable(500, "InternalError", "no")),
        Unkind(Unavailable(0, "Broken", "torn"), frames=1),
    ],
    ids=["ends", "ends after a frame", "410", "410 after a frame", "500", "tears after a frame"],
)
async def test_a_server_that_ends_each_watch_at_once_is_asked_less_and_less(
    server: Unkind, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            enough.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("flashboot_operator.kube.reflector.asyncio.sleep", sleep)
    reflector = Reflector(server, "/api/v1/pods", lambda *_: None)  # type: ignore[arg-type]
    task = asyncio.create_task(reflector.run())
    async with asyncio.timeout(5):
        await enough.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.calls["watch"] <= 9
    assert sum(pauses) >= 20, pauses
    assert pauses[-1] >= 5, pauses


async def test_what_the_server_asks_for_is_kept() -> None:
    reflector = Reflector(Unkind(None), "/", lambda *_: None)  # type: ignore[arg-type]
    assert reflector._backoff(1, Unavailable(429, "TooManyRequests", "later", 7.0)) == 7.0
