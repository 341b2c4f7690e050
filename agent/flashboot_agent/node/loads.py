"""Which loads run, and that every sealed arena gets its image. Loop side, but for `open`; one call in every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from typing import Final

from flashboot_agent.logs import Log
from flashboot_agent.node import rules
from flashboot_agent.node.image_writer import ImageWriter
from flashboot_agent.node.load import Load, LoadDone
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire.desired import WantedArena

log = Log(__name__)

END_SECONDS: Final = 5.0
"""A load or a writer that was told to end looks at that after each piece of a few MiB."""


class Loads:
    """Made with the agent."""

    def __init__(self, node: NodeState, done: Callable[[LoadDone], None]) -> None:
        self._node = node
        self._done = done
        self._opened = False
        self._passed_over: dict[str, str] = {}
        """Arena → why its image is not used, said once."""
        self._writer = ImageWriter(node.images, node.settings.images_bytes_per_second)

    def open(self) -> None:
        """Learn which images are there, before anybody is told what to do. Blocking; idempotent."""
        if not self._opened:
            self._node.images.open()
            self._writer.start()
            self._opened = True

    def round(self, users: Container[str], dropping: Container[str]) -> set[str]:
        """Start and forget loads; the names of the arenas that are, or shall be, filled from an image."""
        node = self._node
        self._writer.update(arena for arena in node.store.all() if arena.state == "sealed")
        desired = node.desired.current.arenas if node.desired.current else []
        self._tell(desired)
        wanted_here = {wanted.arena: wanted for wanted in desired if node.loading(wanted, used=wanted.arena in users)}
        for name, load in list(node.loads.items()):
            if load.ended_at is not None:
                if time.monotonic() - load.ended_at >= node.settings.tick_seconds:  # one that fails makes no hot loop
                    del node.loads[name]
            elif name not in wanted_here:
                load.cancel()
        for name, wanted in wanted_here.items():
            if name not in node.loads and name not in node.clones and name not in dropping:
                self._start(wanted)
        return set(wanted_here) | {name for name, load in node.loads.items() if load.ended_at is None}

    def _tell(self, desired: Iterable[WantedArena]) -> None:
        """An image that is sound and not what is wanted stays: the arena's next image replaces it."""
        images = [(wanted, image) for wanted in desired if (image := self._node.images.find(wanted.arena)) is not None]
        found = {wanted.arena: why for wanted, image in images if (why := rules.differs(wanted, image)) is not None}
        for name, why in found.items():
            if self._passed_over.get(name) != why:
                log.warning("image passed over", arena=name, why=why)
        self._passed_over = found

    def cancel(self) -> None:
        for load in self._node.loads.values():
            load.cancel()

    def close(self) -> None:
        """End all threads. Blocking."""
        self.cancel()
        ended = [load.join(END_SECONDS) for load in self._node.loads.values()]
        if not all([*ended, self._writer.close(END_SECONDS)]):
            log.error("a load or the writer of images does not end")

    def _start(self, wanted: WantedArena) -> None:
        node = self._node
        load = node.loads[wanted.arena] = Load(
            wanted, node.store, node.images, notify=node.board.changed, done=self._done
        )
        log.info("load started", arena=wanted.arena)
        load.start()
