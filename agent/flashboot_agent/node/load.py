"""FlashLoad of an arena from its image on this node: no parent, no engine. One thread per load.

    image's documents → memory → lanes in order, piece by piece, each compared with its digests → seal

What was verified is not read again: the next process after a kill goes on where the last one stopped. An image that is
damaged is removed and told, what was filled of it is dropped, and the arena comes to be in its usual way; so it does
where an image is sound and is not what the operator wants.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flashboot_agent import _native
from flashboot_agent.core.errors import DigestMismatch, FlashBootError, ImageDamaged, Refused
from flashboot_agent.core.lanes import lane_count
from flashboot_agent.load import cache
from flashboot_agent.load.image import Image
from flashboot_agent.load.image_read import read_pieces
from flashboot_agent.logs import Log
from flashboot_agent.node import documents, rules
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.images import ImageStore
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_arena import Accusation
from flashboot_agent.wire.problem import Problem

log = Log(__name__)

MOST_THREADS: Final = 8
"""More readers than this gain nothing on one disk, nor on one memory."""


@dataclass(frozen=True)
class LoadDone:
    """For metrics."""

    seconds: float
    nbytes: int


class Load:
    """Runs from `start` until it ended: sealed, cancelled, or in trouble (`problem`)."""

    def __init__(
        self,
        wanted: WantedArena,
        store: ArenaStore,
        images: ImageStore,
        *,
        notify: Callable[[], None],
        done: Callable[[LoadDone], None],
    ) -> None:
        """`notify` is called after each change that is observed."""
        self.wanted = wanted
        self._store = store
        self._images = images
        self._notify = notify
        self._done = done
        self._progress = _native.BulkProgress()
        self._thread = threading.Thread(target=self._run, name=f"load-{wanted.arena[-8:]}", daemon=True)
        self.ended_at: float | None = None
        """When its thread ended, by the monotonic clock."""
        self.created_at = now()
        self.problem: Problem | None = None
        self.accusations: list[Accusation] = []
        """Never one: there is no parent."""
        self.note = "the arena is loaded from its image on this node"

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """End it soon; `join` waits for that."""
        self._progress.cancel()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # The thread

    def _run(self) -> None:
        name = self.wanted.arena
        try:
            with self._images.reading(name) as image:
                self._fill(image)
        except (_native.BulkCancelled, _native.MarksClosed):  # MarksClosed: it was dropped before it looked
            log.info("load cancelled", arena=name)
        except ImageDamaged as error:
            self._give_up(error)
        except FlashBootError as error:  # no memory, no holder, or the arena went: the next round looks anew
            self.problem = error.problem()
            log.warning("load failed", arena=name, reason=error.reason, why=str(error))
        except OSError as error:
            self.problem = FlashBootError(f"{name}: this node failed: {error}").problem()
            log.error("load failed", exc_info=error, arena=name)
        finally:
            self.ended_at = time.monotonic()
            self._notify()

    def _give_up(self, error: ImageDamaged) -> None:
        log.error("image damaged", arena=self.wanted.arena, why=str(error))
        self.problem = error.problem()
        self._images.damaged(self.wanted.arena, error)
        try:
            self._store.drop(self.wanted.arena, "its image is damaged")
        except FlashBootError as trouble:  # no holder: it frees the memory once it is back
            log.warning("arena not freed yet", arena=self.wanted.arena, why=str(trouble))

    def _fill(self, image: Image) -> None:
        began = time.monotonic()
        arena = self._arena_for(image)
        threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
        with arena.pinned(), cache.readers([image.fd]) as how:
            choice = how[1]
            log.info("load begins", arena=arena.name, start=arena.watermark, bytes=arena.nbytes, how=choice.why)
            with arena.region.map(writable=True) as mapping:
                for lane, (_, end) in enumerate(arena.bounds):
                    start = arena.marks.verified(lane)
                    pieces = read_pieces(
                        image, mapping.view, start, end, threads=threads, how=how, progress=self._progress
                    )
                    for verified in pieces:
                        arena.marks.set_received(lane, verified)
                        arena.marks.set_verified(lane, verified)
                        self._notify()
            arena.seal_clone()
        seconds = time.monotonic() - began
        log.info("load sealed", arena=arena.name, bytes=arena.nbytes, seconds=round(seconds, 3), how=choice.why)
        self._done(LoadDone(seconds, arena.nbytes))

    def _arena_for(self, image: Image) -> Arena:
        """What is here already of these bytes, or new memory."""
        manifest = image.manifest
        if why := rules.differs(self.wanted, manifest):
            raise DigestMismatch(f"{image.path} is passed over: {why}")
        meta = ArenaMeta(
            manifest.arena,
            manifest.identity,
            manifest.bytes,
            image.layout,
            image.digests,
            manifest.digest,
            manifest.version,
        )
        try:
            documents.check(meta)
        except Refused as error:
            raise ImageDamaged(f"{image.path}: its documents do not belong together: {error}") from error
        arena = self._store.get(manifest.arena)
        here = (arena.nbytes, arena.record.digest, arena.record.layout_digest) if arena is not None else None
        if here not in (None, (meta.nbytes, meta.digest, meta.layout_digest)):
            self._store.drop(manifest.arena, "the image has other bytes, or another layout, under this name")
            arena = None
        if arena is None:
            lanes = lane_count(meta.nbytes, len(self.wanted.lanes))
            arena = self._store.allocate(self.wanted, meta.nbytes, "load", lanes=lanes)
        if arena.state == "allocated":
            with arena.pinned():
                arena.adopt_documents(meta, now())
        return arena
