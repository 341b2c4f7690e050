"""The agent's part while a plug-in seeds: memory to write into, then the seal of what was written.

Holds always: only the elected pod gets memory; what can't be committed leaves the arena as it was, and an arena whose
seed goes before its commit is dropped (its session ends, and the next round looks at `arena`).
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded, UnknownArena
from flashboot_agent.logs import Log
from flashboot_agent.memory import memfd
from flashboot_agent.node import commit
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.packets import Packet
from flashboot_agent.node.pods import Pod
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire import attach
from flashboot_agent.wire.desired import WantedArena

log = Log(__name__)

SLOWEST_BYTES_PER_SECOND: Final = 100 << 20
"""At which a seed moves its bytes into the arena, at least."""


class Seeding:
    """Of one connection."""

    def __init__(self, node: NodeState, pod: Pod) -> None:
        self._node = node
        self._pod = pod
        self.arena: str | None = None
        """The one that this plug-in writes."""
        self.seconds = 0.0
        """From the memory to the commit, at most."""

    async def allocate(self, wanted: WantedArena, nbytes: int) -> tuple[str, list[int]]:
        """The arena's name and its descriptors, to write and to read, the caller's to close.

        Raises FlashBootError when there is no memory; nothing is being written then."""
        self.arena = wanted.arena
        fds: list[int] = []
        try:
            arena = await asyncio.to_thread(self._node.store.allocate, wanted, nbytes, "seed", seed_pod=self._pod.uid)
            for writable in (True, False):
                fds.append(arena.export(writable=writable))
        except BaseException:  # whatever it was: the caller does not get the descriptors
            memfd.close_all(fds)
            self.arena = None
            raise
        self.seconds = self._node.settings.commit_seconds + nbytes / SLOWEST_BYTES_PER_SECOND
        return arena.name, fds

    async def layout(self, packet: Packet) -> bytes:
        """The document that a commit carries. Raises BadRequest, DeadlineExceeded."""
        if len(packet.fds) != 1:
            raise BadRequest(f"commit carries one descriptor, the layout; got {len(packet.fds)}")
        seconds = self._node.settings.layout_seconds
        try:
            return await asyncio.wait_for(asyncio.to_thread(commit.read_document, os.dup(packet.fds[0])), seconds)
        except TimeoutError:
            raise DeadlineExceeded(
                f"pod {self._pod.uid}: its layout could not be read within {seconds:.0f} s"
            ) from None

    async def commit(self, document: bytes, hello: attach.Hello) -> Arena:
        """Seal what was written.

        Apart from `layout`, because what `wait_for` raises keeps its frames until the collector runs, and the arena
        must not be in one of them.

        Raises BadRequest (no layout), UnknownArena; another FlashBootError where the plug-in may put it right: the
        arena is still mapped, or of another identity."""
        assert self.arena is not None
        arena = self._node.store.get(self.arena)
        if arena is None:
            raise UnknownArena(f"{self.arena} was dropped while the seed wrote it")
        await asyncio.to_thread(commit.publish, arena, document, hello.identity)
        log.info(
            "seed sealed",
            arena=arena.name,
            pod=self._pod.uid,
            place=str(hello.place),
            digest=arena.record.digest,
            bytes=arena.nbytes,
        )
        self.arena = None
        return arena
