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


class Restored:
    """Lists at one version, then, after the first watch broke or was ended, at an earlier one, with other objects. As
    Kubernetes does, it says nothing in a watch from a version that is still to come."""

    def __init__(self, error: KubeError | None) -> None:
        self.error = error
        self.states = [(70, {"kept": "69", "made later": "70"}), (55, {"kept": "40", "was deleted": "41"})]
        self.watched: list[str] = []
        self.again = asyncio.Event()

    async def get(self, path: str, **query: Any) -> Object:
        version, objects = self.states[0]
        items = [{"metadata": {"name": name, "resourceVersion": v}} for name, v in objects.items()]
        return {"metadata": {"resourceVersion": str(version)}, "items": items[: int(query["limit"])]}

    async def watch(self, path: str, query: dict[str, Any], **_: Any) -> AsyncIterator[Object]:
        self.watched.append(query["resourceVersion"])
        if len(self.watched) == 1:
            del self.states[0]
            if self.error is not None:
                raise self.error
            return
        yield {"type": "MODIFIED", "object": {"metadata": {"name": "kept", "resourceVersion": "56"}}}
        self.again.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("error", [Unavailable(0, "Broken", "torn"), None], ids=["broke", "ended before its time"])
async def test_a_server_that_went_back_is_listed_anew_and_its_state_taken_as_it_is(error: KubeError | None) -> None:
    server, gone = Restored(error), []
    reflector = Reflector(
        server,  # type: ignore[arg-type]
        "/api/v1/pods",
        lambda key, _, after: gone.append(key[1]) if after is None else None,
        max_backoff_s=0.01,
    )
    task = asyncio.create_task(reflector.run())
    async with asyncio.timeout(5):
        await server.again.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.watched == ["70", "55"]
    versions = {key[1]: obj["metadata"]["resourceVersion"] for key, obj in reflector.objects.items()}
    assert versions == {"kept": "56", "was deleted": "41"}
    assert gone == ["made later"]


async def test_what_the_server_asks_for_is_kept() -> None:
    reflector = Reflector(Unkind(None), "/", lambda *_: None)  # type: ignore[arg-type]
    assert reflector._backoff(1, Unavailable(429, "TooManyRequests", "later", 7.0)) == 7.0
