"""An update that gives up while the agent's loop is held up: the loop must not bar the arena for nobody afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flashboot_agent.node import updates as module
from flashboot_agent.node.orders import Cancelled
from flashboot_agent.node.record import Between
from flashboot_agent.node.updates import Updates

BETWEEN = Between(base=0, new=1, base_digest="xxh3:" + "0" * 16, new_digest="xxh3:" + "1" * 16)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.mark.parametrize("held", [True, False])
def test_an_arena_is_barred_only_for_who_waits(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    barred: list[Between] = []
    arena = SimpleNamespace(name="arena", state="sealed", begin_update=lambda between, why: barred.append(between))
    node = SimpleNamespace(
        updates={}, store=SimpleNamespace(get=lambda name: arena), settings=SimpleNamespace(node="a")
    )
    update: Any = object()
    node.updates["arena"] = update

    async def made() -> Updates:
        return Updates(cast(Any, node), cast(Any, SimpleNamespace(using=lambda name: [])), cast(Any, None))

    updates = asyncio.run_coroutine_threadsafe(made(), loop).result(10)
    if not held:
        assert updates._begin(update, cast(Any, arena), BETWEEN) == []
        assert barred == [BETWEEN]
        return
    go = threading.Event()
    loop.call_soon_threadsafe(go.wait, 10)
    monkeypatch.setattr(module, "BEGIN_SECONDS", 0.05)
    with pytest.raises(Cancelled):
        updates._begin(update, cast(Any, arena), BETWEEN)
    go.set()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)  # all that waited has run
    assert barred == []
