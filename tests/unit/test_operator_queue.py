"""The work queue: one worker per key, marks fall together, failures back off, nothing spins."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from flashboot_operator.kube.queue import WorkQueue


@asynccontextmanager
async def running(work: Callable[[str], Awaitable[None]], **options: float) -> AsyncIterator[WorkQueue[str]]:
    queue: WorkQueue[str] = WorkQueue(work, **{"min_interval_s": 0.0, "base_backoff_s": 0.01, **options})  # type: ignore[arg-type]
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_marks_while_it_waits_fall_together() -> None:
    runs: Counter[str] = Counter()
    done = asyncio.Event()

    async def work(key: str) -> None:
        runs[key] += 1
        done.set()

    async with running(work) as queue:
        for _ in range(100):
            queue.mark("a")
        async with asyncio.timeout(5):
            await done.wait()
    assert runs == {"a": 1}


async def test_a_mark_during_the_work_is_worked_on_after_it_never_beside_it() -> None:
    inside, most, runs = 0, 0, 0
    started, proceed, twice = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(_: str) -> None:
        nonlocal inside, most, runs
        inside, runs = inside + 1, runs + 1
        most = max(most, inside)
        started.set()
        await proceed.wait()
        inside -= 1
        if runs == 2:
            twice.set()

    async with running(work) as queue, asyncio.timeout(5):
        queue.mark("a")
        await started.wait()
        queue.mark("a")
        queue.mark("a")
        proceed.set()
        await twice.wait()
    assert (most, runs) == (1, 2)


async def test_one_key_that_hangs_does_not_hold_up_the_others() -> None:
    done = asyncio.Event()

    async def work(key: str) -> None:
        if key == "hangs":
            await asyncio.Event().wait()
        done.set()

    async with running(work) as queue, asyncio.timeout(5):
        queue.mark("hangs")
        queue.mark("b")
        await done.wait()


async def test_failures_are_tried_again_later_and_later() -> None:
    loop = asyncio.get_running_loop()
    at: list[float] = []
    fine = asyncio.Event()

    async def work(_: str) -> None:
        at.append(loop.time())
        if len(at) < 5:
            raise RuntimeError("not yet")
        fine.set()

    async with running(work, base_backoff_s=0.02) as queue, asyncio.timeout(10):
        queue.mark("a")
        for _ in range(50):
            queue.mark("a")  # Marks must not cut a back-off short.
            await asyncio.sleep(0)
        await fine.wait()
    gaps = [b - a for a, b in itertools.pairwise(at)]
    assert all(gap >= 0.02 * 2**n * 0.99 for n, gap in enumerate(gaps)), gaps


async def test_two_runs_of_a_key_keep_their_distance() -> None:
    loop = asyncio.get_running_loop()
    at: list[float] = []
    enough = asyncio.Event()

    async def work(key: str) -> None:
        at.append(loop.time())
        queue.mark(key)
        if len(at) == 4:
            enough.set()

    async with running(work, min_interval_s=0.05) as queue, asyncio.timeout(10):
        queue.mark("a")
        await enough.wait()
    assert all(b - a >= 0.049 for a, b in itertools.pairwise(at)), at


async def test_a_key_rests_as_long_as_it_worked() -> None:
    loop = asyncio.get_running_loop()
    at: list[tuple[float, float]] = []
    enough = asyncio.Event()

    async def work(key: str) -> None:
        began = loop.time()
        queue.mark(key)
        await asyncio.sleep(0.03)  # the work itself
        at.append((began, loop.time()))
        if len(at) == 3:
            enough.set()

    async with running(work) as queue, asyncio.timeout(10):
        queue.mark("a")
        await enough.wait()
    assert all(later - ended >= (ended - began) * 0.99 for (began, ended), (later, _) in itertools.pairwise(at)), at


async def test_an_urgent_mark_waits_less_also_while_another_one_waits() -> None:
    loop = asyncio.get_running_loop()
    at: list[float] = []
    twice = asyncio.Event()

    async def work(_: str) -> None:
        at.append(loop.time())
        if len(at) == 1:
            queue.mark("a")
            queue.mark("a", urgent=True)
        else:
            twice.set()

    async with running(work, min_interval_s=60.0, urgent_interval_s=0.02) as queue, asyncio.timeout(10):
        queue.mark("a")
        await twice.wait()
        assert at[1] - at[0] >= 0.02
        queue.mark("a")
        assert not await _again(twice)


async def _again(event: asyncio.Event) -> bool:
    event.clear()
    try:
        async with asyncio.timeout(0.1):
            return await event.wait()
    except TimeoutError:
        return False


async def test_what_is_to_be_worked_on_because_something_happened_is_due() -> None:
    proceed, inside = asyncio.Event(), asyncio.Event()

    async def work(_: str) -> None:
        inside.set()
        await proceed.wait()

    async with running(work) as queue, asyncio.timeout(5):
        queue.mark("later", after_s=60)
        assert not queue.is_due("later")
        queue.mark("a")
        assert queue.is_due("a")
        await inside.wait()
        assert queue.is_due("a")
        proceed.set()
