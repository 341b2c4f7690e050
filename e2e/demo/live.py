"""What happens on every node right now: one long poll per agent, so that a clone of a second is seen in motion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flashboot_agent.wire.control import Observed, ObservedArena, ObservedPod
from kit.agents import agents
from kit.apiserver import ApiServer
from kit.errors import KitError
from kit.kubectl import Kubectl

WAIT_SECONDS = 2
RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class NodeView:
    """A node's share in one ModelReplica, as its agent told last."""

    node: str
    arena: ObservedArena | None = None
    pod: ObservedPod | None = None
    trouble: str | None = None
    """Why its agent could not be asked."""

    def percent(self) -> int:
        if self.arena is None or self.arena.bytes == 0:
            return 0
        return 100 * self.arena.watermark // self.arena.bytes


class Watch:
    """Follows all agents in threads until closed; `views` is always the newest word of each."""

    def __init__(self, kubectl: Kubectl, api: ApiServer, namespace: str, name: str) -> None:
        self._kubectl = kubectl
        self._api = api
        self._namespace = namespace
        self._name = name
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._views = {node: NodeView(node) for node in agents(kubectl)}
        self._threads = [threading.Thread(target=self._follow, args=(node,), daemon=True) for node in self._views]
        for thread in self._threads:
            thread.start()

    def views(self) -> list[NodeView]:
        with self._lock:
            return [self._views[node] for node in sorted(self._views)]

    def close(self) -> None:
        """Ends within one long poll."""
        self._over.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS + 15)

    def _follow(self, node: str) -> None:
        agent = None
        after = -1
        while not self._over.is_set():
            try:
                agent = agent or agents(self._kubectl).get(node)
                if agent is None:
                    raise KitError(f"no agent runs on {node}")
                seen = agent.observed(self._api, after=after, wait_seconds=WAIT_SECONDS)
                after = seen.counter
                view = self._view(node, seen)
            except KitError as trouble:
                agent, after = None, -1
                view = NodeView(node, trouble=str(trouble))
                self._over.wait(RETRY_SECONDS)
            with self._lock:
                self._views[node] = view

    def _view(self, node: str, seen: Observed) -> NodeView:
        def ours(item: ObservedArena | ObservedPod) -> bool:
            return (item.namespace, item.model_replica) == (self._namespace, self._name)

        arena = next((arena for arena in seen.arenas if ours(arena)), None)
        pod = next((pod for pod in seen.pods if ours(pod)), None)
        return NodeView(node, arena, pod)


@contextmanager
def watching(kubectl: Kubectl, api: ApiServer, namespace: str, name: str) -> Iterator[Watch]:
    watch = Watch(kubectl, api, namespace, name)
    try:
        yield watch
    finally:
        watch.close()
