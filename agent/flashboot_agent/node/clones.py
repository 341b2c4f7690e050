"""Which clones run: started when the desired state and a pod want one, fed with its parents, ended when nobody does."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping

from flashboot_agent.logs import Log
from flashboot_agent.node import rules
from flashboot_agent.node.clone import Clone, CloneDone
from flashboot_agent.node.drops import Drops
from flashboot_agent.node.state import NodeState
from flashboot_agent.transport.choose import Connect
from flashboot_agent.wire.desired import WantedArena

log = Log(__name__)


class Clones:
    """Loop side; one call in every round."""

    def __init__(self, node: NodeState, drops: Drops, connect: Connect, done: Callable[[CloneDone], None]) -> None:
        self._node = node
        self._drops = drops
        self._connect = connect
        self._done = done

    def round(self, users: Mapping[str, list[str]], loading: Container[str]) -> None:
        """`users`: by arena, as NodeState.users says. `loading`: arenas that are filled from images."""
        node = self._node
        wanted_here: dict[str, WantedArena] = {}
        for wanted in node.desired.current.arenas if node.desired.current else []:
            arena = node.store.get(wanted.arena)
            if wanted.arena not in loading and rules.clones(
                wanted, arena.state if arena else None, used=wanted.arena in users
            ):
                wanted_here[wanted.arena] = wanted
        for name, clone in list(node.clones.items()):
            if name in wanted_here and clone.ended_at is None:
                clone.update(wanted_here[name])
            elif clone.ended_at is not None:
                if time.monotonic() - clone.ended_at >= node.settings.tick_seconds:  # one that fails makes no hot loop
                    del node.clones[name]
            elif (arena := node.store.get(name)) is None or arena.state != "sealed":  # else it is about to end
                self._drops.drop(name, arena.state if arena else None, "the clone is no longer wanted")
        for name, wanted in wanted_here.items():
            if name not in node.clones and name not in self._drops.under_way and self._room_for(wanted):
                self._start(wanted)

    def _start(self, wanted: WantedArena) -> None:
        node = self._node
        clone = node.clones[wanted.arena] = Clone(
            wanted,
            node.store,
            self._connect,
            node.settings,
            notify=node.board.changed,
            moved=node.board.moved,
            done=self._done,
        )
        log.info("clone started", arena=wanted.arena, parents=[parent.node for parent in wanted.lanes[0].parents])
        clone.start()

    def _room_for(self, wanted: WantedArena) -> bool:
        taken = sum(clone.threads for clone in self._node.clones.values() if clone.ended_at is None)
        return taken == 0 or taken + len(wanted.lanes) <= self._node.settings.lane_threads

    def cancel(self) -> None:
        for clone in self._node.clones.values():
            clone.cancel()

    def join(self) -> None:
        """Until they have ended, as far as they do. Blocking."""
        for clone in self._node.clones.values():
            clone.join(self._node.settings.connect_seconds + 2)
