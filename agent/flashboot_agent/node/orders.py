"""What the operator wants of one clone, as its lanes see it while it changes. Thread-safe."""

from __future__ import annotations

import threading

from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import WantedArena


class Cancelled(Exception):
    """The arena is no longer wanted here, or not as it is; nobody's fault."""


class Orders:
    """The wanted arena, and whether it is still wanted."""

    def __init__(self, wanted: WantedArena) -> None:
        self._changed = threading.Condition()
        self._wanted = wanted
        self._cancelled = False
        self._halted = False

    @property
    def wanted(self) -> WantedArena:
        return self._wanted

    def update(self, wanted: WantedArena) -> None:
        """A new desired state; ends waits."""
        with self._changed:
            if wanted != self._wanted:
                self._wanted = wanted
                self._changed.notify_all()

    def cancel(self) -> None:
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def halt(self) -> None:
        """All lanes stop as if cancelled, until `go_on`."""
        with self._changed:
            self._halted = True
            self._changed.notify_all()

    def go_on(self) -> None:
        with self._changed:
            self._halted = False

    def parents(self, lane: int) -> list[Peer]:
        """Of a lane of ours, best first. There may be fewer lanes in the orders than the arena has."""
        lanes = self._wanted.lanes
        return lanes[lane % len(lanes)].parents

    def wait_for_parents(self, lane: int) -> list[Peer]:
        """As soon as there is one. Raises Cancelled."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self.parents(lane)))
        self.require()
        return self.parents(lane)

    def wait_for_news(self, seen: WantedArena, seconds: float) -> bool:
        """True as soon as something else than `seen` is wanted; False after `seconds`. Raises Cancelled."""
        with self._changed:
            news = self._changed.wait_for(lambda: self._stopped or self._wanted != seen, timeout=seconds)
        self.require()
        return news

    def require(self) -> None:
        """Raises Cancelled."""
        if self._stopped:
            raise Cancelled

    @property
    def _stopped(self) -> bool:
        return self._cancelled or self._halted
