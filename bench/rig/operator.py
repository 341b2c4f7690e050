"""The operator without Kubernetes: its own planner and its own fleet of agents; only the API server's facts are ours.

Runs in a thread with an event loop. What it decides, and how it hears and tells the agents, is the operator's code; the
pods that there are and the nodes that they run on are what the benchmark says.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from bench.kit.say import say
from flashboot_operator.agents.client import AgentClient
from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.agents.wishes import Wish
from flashboot_operator.core.facts import Agent, Key, Node, Pod, World
from flashboot_operator.core.plan import ArenaPlan, Memory, Owner, memory_of, wanted_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.kube.queue import WorkQueue
from flashboot_operator.reconcile.upkeep import REVISIT_S

_START_SECONDS = 30.0


class _Lease:
    epoch = 1

    async def raise_above(self, epoch: int) -> int:
        raise RuntimeError(f"an agent of this rig knows epoch {epoch}, another operator must be at work")


class Operator:
    """A context manager: runs while it is open."""

    def __init__(self, owner: Owner, addresses: Mapping[str, str], client: Callable[[], AgentClient]) -> None:
        self._owner = owner
        self._key: Key = (owner.namespace, owner.name)
        self._addresses = addresses
        self._nodes = {node: Node(node) for node in addresses}
        self._client = client
        self._pods: tuple[Pod, ...] = ()
        self._memory = Memory()
        self._plans: list[ArenaPlan] = []
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)

    def __enter__(self) -> Operator:
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise TimeoutError(f"the operator did not start within {_START_SECONDS:.0f} s")
        self.check()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_SECONDS)

    def check(self) -> None:
        """Raises what ended the operator's loop."""
        if self._failure is not None:
            raise RuntimeError("the operator's loop ended") from self._failure

    def set_pods(self, pods: Sequence[Pod], *, draining: Collection[str] = ()) -> None:
        """All live pods, from now on. `draining`: nodes that shall not stay sources without a pod."""
        self._pods = tuple(pods)
        self._nodes = {node: Node(node, cordoned=node in draining) for node in self._addresses}
        self._loop.call_soon_threadsafe(self._queue.mark, self._key)

    @property
    def plans(self) -> list[ArenaPlan]:
        """What was decided last."""
        return self._plans

    @property
    def agents(self) -> Mapping[str, Agent]:
        """By node: the last words that count."""
        return self._fleet.agents()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - told by `check` in the thread that runs the benchmark
            self._failure = error
            say(f"operator: {type(error).__name__}: {error}")
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._queue: WorkQueue[Key] = WorkQueue(self._work)
        self._fleet = Fleet(self._client(), _Lease(), ttl_s=600, on_change=self._queue.mark)
        working = asyncio.create_task(self._queue.run())
        try:
            self._fleet.endpoints(self._addresses)
            await self._fleet.all_heard(_START_SECONDS)
            self._reconcile()
            self._fleet.open_up()
            self._started.set()
            while not self._stop.is_set():
                self._queue.mark(self._key)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), REVISIT_S)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await self._fleet.close()

    async def _work(self, _: Key) -> None:
        try:
            self._reconcile()
        except Exception as error:  # noqa: BLE001 - the queue would try again; here it is the end of the benchmark
            self._failure = error
            self._stop.set()

    def _reconcile(self) -> None:
        sequence = self._fleet.sequence()
        facts: dict[str, Any] = {"nodes": self._nodes, "pods": self._pods, "agents": self._fleet.agents()}
        silent = self._fleet.silent({pod.node for pod in self._pods if pod.node is not None})
        world = World(**facts, now=datetime.now(UTC), missing_agents=silent)
        self._plans = plan_replica(self._owner, world, self._memory)
        self._memory = memory_of(self._plans)
        self._fleet.want(self._key, Wish(wanted_of(self._plans)), sequence)
