"""All agents: found by their pods, each with a task of its own; and what all ModelReplicas together want of a node."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from flashboot_agent.wire.desired import Desired, WantedArena
from flashboot_operator.agents.client import AgentClient
from flashboot_operator.agents.enrol import Signing
from flashboot_operator.agents.node import NodeAgent
from flashboot_operator.agents.wishes import Wanted, Wish, Wishes
from flashboot_operator.core.facts import Agent, Key

log = logging.getLogger(__name__)


class Epoch(Protocol):
    """The Lease, as far as agents matter."""

    epoch: int

    def raise_above(self, epoch: int) -> Awaitable[int]: ...


class Fleet:
    def __init__(
        self,
        client: AgentClient,
        lease: Epoch,
        *,
        ttl_s: int,
        on_change: Callable[[Key], None],
        signing: Signing | None = None,
        on_told: Callable[[Desired], None] = lambda _: None,
    ) -> None:
        """`signing`: how agents get their certificates; None: not from here. `on_told`: a node acknowledged this."""
        self._client = client
        self._signing = signing
        self._on_told = on_told
        self._lease = lease
        self._ttl_s = ttl_s
        self._on_change = on_change
        self._agents: dict[str, NodeAgent] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wishes = Wishes()
        self._looked_at: dict[Key, int] = {}
        self._heard_at: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}
        self._look = asyncio.Event()
        self._sequence = 0
        self._revision = 0
        self.open = False
        """False until every ModelReplica was looked at once: a part of the whole must not be told as the whole."""

    # With what authority (node.Voice)

    @property
    def epoch(self) -> int:
        return self._lease.epoch

    def next_revision(self) -> int:
        self._revision += 1
        return self._revision

    async def raise_above(self, epoch: int) -> None:
        if epoch < self._lease.epoch:
            return
        try:
            await self._lease.raise_above(epoch)
        except Exception as error:  # noqa: BLE001 - told again after a pause; a Lease that is lost ends the process by itself
            log.warning("the epoch could not be raised: %s", error, extra={"seen": epoch})
        for agent in self._agents.values():
            agent.changed.set()

    # What is known

    def sequence(self) -> int:
        """A number to take before looking at the agents, and to hand to `want`."""
        return self._sequence

    def agents(self) -> dict[str, Agent]:
        """By node, those whose word counts."""
        return {node: self._agent(agent) for node, agent in self._agents.items() if agent.trusted}

    def _agent(self, agent: NodeAgent) -> Agent:
        assert agent.observed is not None
        put = agent.put
        return Agent(
            node=agent.node,
            observed=agent.observed,
            fresh=agent.fresh,
            silent_s=agent.silent_s,
            accused=agent.accused(),
            put_revision=put.revision if put else -1,
            put_parents={a.arena: _parents(a) for a in put.arenas} if put else {},
            put_seeds={a.arena: a.seed_pod for a in put.arenas if a.seed_pod} if put else {},
            ordered_s=agent.ordered_s(),
            samples=agent.samples,
            restart=agent.restart,
        )

    def silent(self, nodes: set[str]) -> dict[str, float]:
        """Seconds of silence of those of the nodes whose agent does not answer."""
        result = {}
        now = time.monotonic()
        for node in nodes:
            agent = self._agents.get(node)
            if agent is not None and agent.fresh:
                self._missing_since.pop(node, None)
            else:
                since = self._missing_since.setdefault(node, now if agent is None else agent.last_seen)
                result[node] = now - since
        return result

    def skewed(self, nodes: set[str]) -> dict[str, str]:
        """What is wrong with the version of the agents of these nodes, where something is."""
        agents = {node: self._agents[node] for node in nodes if node in self._agents}
        return {node: text for node, agent in agents.items() if (text := str(agent.skew))}

    def last_seen(self) -> dict[str, float]:
        """Node → seconds since its agent last answered; for health and the live view."""
        return {node: agent.silent_s for node, agent in sorted(self._agents.items())}

    # What is wanted

    def want(self, key: Key, wish: Wish, sequence: int) -> None:
        """The whole of what one ModelReplica wants, decided with what was heard up to `sequence`."""
        before = self._wishes.get(key)
        self._wishes.put(key, wish)
        self._looked_at[key] = sequence
        self._look.set()
        for node, agent in self._agents.items():
            if wish.differs(before, node) or (agent.gate and key in agent.gate):
                agent.changed.set()

    def looked(self, key: Key, sequence: int) -> None:
        """It could not be decided anew; what was wanted stays."""
        self.want(key, self._wishes.get(key), sequence)

    async def all_heard(self, deadline_s: float) -> None:
        """Wait for the first word of every agent that has an address, not longer than the deadline."""
        try:
            async with asyncio.timeout(deadline_s):
                for agent in list(self._agents.values()):
                    if agent.ip:
                        await agent.first_word.wait()
        except TimeoutError:
            mute = [node for node, agent in self._agents.items() if agent.ip and not agent.first_word.is_set()]
            log.warning("going on without the word of some agents", extra={"nodes": mute, "waitedSeconds": deadline_s})

    async def all_looked_at(self, keys: set[Key], sequence: int) -> None:
        """Wait until each of the keys was looked at with all that was heard up to `sequence`."""
        while any(self._looked_at.get(key, -1) < sequence for key in keys):
            self._look.clear()
            await self._look.wait()

    def prune(self, known: set[Key]) -> None:
        """Forget when keys were looked at that are gone for good."""
        needed = known.union(*(agent.gate or set() for agent in self._agents.values()))
        self._looked_at = {key: at for key, at in self._looked_at.items() if key in needed}

    def open_up(self) -> None:
        if not self.open:
            self.open = True
            for agent in self._agents.values():
                agent.changed.set()

    def _wanted_of(self, node: str) -> Wanted | None:
        agent = self._agents[node]
        if not self.open or agent.gate is None or not agent.fresh:
            return None
        heard = self._heard_at.get(node, 0)
        if any(self._looked_at.get(key, -1) < heard for key in agent.gate):
            return None
        agent.gate = set()
        return self._wishes.of(node)

    # Who is there

    def endpoints(self, addresses: Mapping[str, str]) -> None:
        """Node → address of its agent, all of them. The last word of an agent without one counts for a while yet."""
        for node, agent in list(self._agents.items()):
            ip = addresses.get(node, "")
            if ip != agent.ip:
                log.info("agent moved" if ip else "agent left", extra={"node": node, "ip": ip or agent.ip})
                agent.move(ip)
                self._start(agent)
            elif not ip and not agent.trusted:
                self._tasks.pop(node).cancel()
                del self._agents[node]
                self._missing_since[node] = agent.last_seen
                for key in agent.concerns():
                    self._on_change(key)
        for node, ip in addresses.items():
            if node not in self._agents:
                self._agents[node] = NodeAgent(
                    node,
                    ip,
                    client=self._client,
                    voice=self,
                    ttl_s=self._ttl_s,
                    wanted=self._wanted_of,
                    heard=self._on_heard,
                    told=self._on_told,
                    signing=self._signing,
                )
                self._start(self._agents[node])

    def _start(self, agent: NodeAgent) -> None:
        if (running := self._tasks.get(agent.node)) is not None:
            running.cancel()
        self._tasks[agent.node] = asyncio.create_task(self._supervise(agent), name=f"agent {agent.node}")

    async def _supervise(self, agent: NodeAgent) -> None:
        while True:
            try:
                await agent.run()
            except Exception as error:  # a fault of ours about one node must not end what is done for the others
                log.error("the loop of an agent broke, starting it again", exc_info=error, extra={"node": agent.node})
                await asyncio.sleep(1)

    def _on_heard(self, agent: NodeAgent, about: set[Key] | None, before: set[Key]) -> None:
        """`about`: whom the word concerns; None: all that the node holds, held `before` or is to hold."""
        self._sequence += 1
        if agent.gate_is_new:
            agent.gate_is_new = False
            self._heard_at[agent.node] = self._sequence
        if about is None:
            about = agent.concerns() | before | self._wishes.whose(agent.node)
        for key in about:
            self._on_change(key)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()


def _parents(wanted: WantedArena) -> tuple[str | None, ...]:
    return tuple(lane.parents[0].node if lane.parents else None for lane in wanted.lanes)
