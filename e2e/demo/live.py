"""What happens on every node right now, as the operator hears it, looked at often enough to see a clone in motion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod
from kit.agents import Operators, agents
from kit.apiserver import ApiServer
from kit.errors import KitError

EVERY_SECONDS = 0.2


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
    """Asks in a thread until closed; `views` is always the newest word of each node."""

    def __init__(self, api: ApiServer, namespace: str, name: str) -> None:
        self._operators = Operators(api)
        self._namespace = namespace
        self._name = name
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._views = {node: NodeView(node) for node in agents(api)}
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def views(self) -> list[NodeView]:
        with self._lock:
            return [self._views[node] for node in sorted(self._views)]

    def close(self) -> None:
        """Ends within one question's deadline."""
        self._over.set()
        self._thread.join(15)

    def _follow(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            try:
                seen = self._operators.observed()
                trouble = "its agent does not answer the operator"
            except KitError as error:
                seen, trouble = {}, str(error)
            with self._lock:
                silent = {node: replace(view, trouble=trouble) for node, view in self._views.items()}
                self._views = silent | {node: self._view(node, state) for node, state in seen.items()}

    def _view(self, node: str, seen: Observed) -> NodeView:
        def ours(item: ObservedArena | ObservedPod) -> bool:
            return (item.namespace, item.model_replica) == (self._namespace, self._name)

        arena = next((arena for arena in seen.arenas if ours(arena)), None)
        pod = next((pod for pod in seen.pods if ours(pod)), None)
        return NodeView(node, arena, pod)


@contextmanager
def watching(api: ApiServer, namespace: str, name: str) -> Iterator[Watch]:
    watch = Watch(api, namespace, name)
    try:
        yield watch
    finally:
        watch.close()
