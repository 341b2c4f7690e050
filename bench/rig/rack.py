"""Nodes of a fan-out: started in their namespaces, one of them seeded, the others filled and emptied again and again.

What always holds: every process that was started has ended when the rack is left, killed if need be, and its folder is
gone unless something failed.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np

from bench.kit.paired import RunFailed
from bench.kit.say import say
from bench.kit.worker import cpu_seconds
from bench.rig.links import Network
from bench.rig.operator import Operator
from flashboot_agent.core.identity import arena_id
from flashboot_agent.holder.client import HolderClient
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.place import Place
from flashboot_operator.agents.client import AgentClient
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import Node as NodeFacts
from flashboot_operator.core.facts import Pod
from flashboot_operator.core.plan import Owner
from tests.component.agents import REPLICA_UID, Node, eventually
from tests.component.trust import Issuer

_STARTING = 4
"""Nodes that start at once."""
_HASH = "bench"
_OWNER = Owner(
    "serving",
    "tiny",
    REPLICA_UID,
    # No template: pods are adopted. The cap on a source is another experiment than these.
    Spec.model_validate({"model": {"name": "bench", "revision": "r1"}, "transfer": {"sourceEgressPercent": 100}}),
    None,
)


@dataclass(frozen=True)
class Filled:
    """One node's arena at the end of a clone."""

    node: str
    arena: ObservedArena

    @property
    def began(self) -> datetime:
        assert self.arena.started_at is not None
        return self.arena.started_at

    @property
    def ended(self) -> datetime:
        assert self.arena.sealed_at is not None
        return self.arena.sealed_at


class Rack:
    """`count` targets and a source (node 0), over links that exist already. A context manager."""

    def __init__(self, links: Network, arena_bytes: int, *, secure: bool) -> None:
        self.links = links
        self.data = np.random.Generator(np.random.PCG64(11)).bytes(arena_bytes)
        facts = NodeFacts("any")
        expected = expected_identity(
            _OWNER.spec, template_hash=_HASH, gpu_product=facts.product, architecture=facts.architecture
        )
        self.arena = arena_id(REPLICA_UID, expected, Place())
        self._issuer = Issuer() if secure else None
        self._pods: dict[str, Pod] = {}

    def __enter__(self) -> Rack:
        self._stack = ExitStack()
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="fbb-"))
            self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.nodes = [self._node(number) for number in range(self.links.count)]
            with ThreadPoolExecutor(_STARTING) as starting:
                list(starting.map(_start, self.nodes))
            say(f"{len(self.nodes)} nodes are up")
            addresses = {node.name: node.ip for node in self.nodes}
            self.operator = self._stack.enter_context(Operator(_OWNER, addresses, self._client))
            self._seed()
        except BaseException:  # whatever it was: nothing may stay
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            for node in self.nodes:
                say(f"log of {node.name}: {_tail(node.log)}")
        self._stack.close()

    def _node(self, number: int) -> Node:
        budget = len(self.data) + (64 << 20)
        node = Node(f"n{number:02d}", self.folder, budget=budget, issuer=self._issuer, env=self.links.env())
        node.ip, node.prefix = self.links.ip(number), self.links.prefix(number)
        self._stack.callback(kill, node)
        return node

    def restart(self, node: Node) -> None:
        """After `kill`: an empty node of the same name."""
        shutil.rmtree(node.run / "holder", ignore_errors=True)
        _start(node)

    def _client(self) -> AgentClient:
        client = AgentClient(port=9440, tls=self._issuer is not None)
        if self._issuer is not None:
            client.identify(self._issuer.issue_operator())
        return client

    def cpu(self) -> float:
        """CPU seconds of all agents and holders that live, so far."""
        processes = [p for node in self.nodes for p in (node.agent, node.holder) if p is not None and p.poll() is None]
        return sum(cpu_seconds(process.pid) for process in processes)

    def _publish(self, node: Node) -> None:
        uid, at = node.publish(), datetime.now(UTC)
        self._pods[node.name] = Pod(uid, f"tiny-{uid[:5]}", "serving", "tiny", node.name, _HASH, at, bound=at)

    def _seed(self) -> None:
        source = self.nodes[0]
        self._publish(source)
        self.operator.set_pods(list(self._pods.values()))
        with source.engine(self._pods[source.name].uid) as engine:
            engine.seed(self.data)
        source.until_sealed(self.arena)
        say(f"{source.name} is seeded with {len(self.data) >> 20} MiB")

    def fill(self, targets: list[Node], seconds: float, during: Callable[[], None] = lambda: None) -> list[Filled]:
        """All targets at once; returns when all that live hold the arena, in the order of `targets`.

        `during` is called again and again. Raises RunFailed after `seconds`, or when a target's bytes are wrong."""
        for node in targets:
            self._publish(node)
        self.operator.set_pods(list(self._pods.values()))
        end = time.monotonic() + seconds
        done: dict[str, Filled] = {}
        while left := [n for n in targets if n.name not in done and not dead(n)]:
            if time.monotonic() > end:
                raise RunFailed(f"not within {seconds:.0f} s: {', '.join(n.name for n in left)} lack the arena")
            during()
            self.operator.check()
            agents = self.operator.agents
            for node in left:
                arena = agents[node.name].arena(self.arena) if node.name in agents else None
                if arena is not None and arena.state == "sealed":
                    done[node.name] = Filled(node.name, arena)
            time.sleep(0.05)  # between two looks; the operator shares this process
        for node in targets:
            if not dead(node):
                self._compare(node)
        return [done[node.name] for node in targets if node.name in done]

    def _compare(self, node: Node) -> None:
        """Byte for byte, in the holder's memory."""
        kept = HolderClient(str(node.run / "holder/holder.sock")).get(self.arena)
        if kept is None:
            raise RunFailed(f"{node.name}: the holder has no {self.arena}")
        with mmap.mmap(kept.data, kept.nbytes, prot=mmap.PROT_READ) as memory:
            same = memory[: len(self.data)] == self.data
        os.close(kept.data)
        os.close(kept.record)
        if not same:
            raise RunFailed(f"{node.name}: its arena differs from the source's")

    def empty(self, targets: list[Node]) -> None:
        """Take the pods away again and wait until the memory is free.

        A target may have become the source, where a slow child accused the first one; drained, it hands that back."""
        for node in targets:
            pod = self._pods.pop(node.name)
            if not dead(node):
                node.unpublish(pod.uid)
        pods = list(self._pods.values())
        self.operator.set_pods(pods, draining=[node.name for node in targets])
        for node in targets:
            if not dead(node):
                eventually(partial(_holds_nothing, node), f"{node.name} gives the arena back")
        self.operator.set_pods(pods)

    def arena_of(self, node: Node) -> ObservedArena | None:
        """As the operator heard it last."""
        agent = self.operator.agents.get(node.name)
        return agent.arena(self.arena) if agent is not None else None


def _holds_nothing(node: Node) -> bool:
    return node.held() == 0


def _start(node: Node) -> None:
    node.start_holder()
    node.start_agent()


def kill(node: Node) -> None:
    """SIGKILL to all that the node runs. Idempotent."""
    for process in (node.agent, node.holder):
        if process is not None:
            process.kill()
            process.wait(10)


def dead(node: Node) -> bool:
    return node.agent is None or node.agent.poll() is not None


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-600:] if path.exists() else "none"
