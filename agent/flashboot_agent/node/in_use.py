"""Which engines have an arena, for an update of it: none may, as long as none knows how to pause (node/pause.py)."""

from __future__ import annotations

from collections.abc import Sequence

from flashboot_agent.core.errors import ArenaInUse
from flashboot_agent.node.pause import Engine
from flashboot_agent.node.state import NodeState


class NoneMayUseIt:
    """Engines: an arena that a pod has is not updated."""

    def __init__(self, node: NodeState) -> None:
        self._node = node

    def using(self, arena: str) -> Sequence[Engine]:
        pods = self._node.holding(arena)
        if pods:
            names = ", ".join(f"{pod.meta.namespace}/{pod.meta.name}" for pod in pods)
            raise ArenaInUse(
                f"{arena} on node {self._node.settings.node} is attached to {names}; engines can't be paused for an "
                "update yet: end these pods, or wait until they end"
            )
        return []
