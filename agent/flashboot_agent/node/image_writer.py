"""Writes the image of every sealed arena that has none, one at a time, in a thread of its own.

Holds always: an arena is pinned only while the agent keeps it, so that an image never delays a drop by more than a step
of the writer; what can't be written is told once, and not tried again with the same bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from flashboot_agent.core.errors import ArenaUpdating, UnknownArena
from flashboot_agent.load.image import Manifest, image_size
from flashboot_agent.load.image_write import Stopped, write_image
from flashboot_agent.logs import Log
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.images import ImageStore
from flashboot_agent.node.record import ArenaRecord
from flashboot_agent.wire.base import now

log = Log(__name__)

Digests = tuple[str | None, str | None]
"""Of an arena's bytes and of its layout."""


class ImageWriter:
    """Runs from `start` to `close`."""

    def __init__(self, images: ImageStore, bytes_per_second: int) -> None:
        """`bytes_per_second` 0: as fast as the disk takes it."""
        self._images = images
        self._rate = bytes_per_second
        self._changed = threading.Condition()
        self._sealed: dict[str, Arena] = {}
        self._refused: dict[str, Digests] = {}
        """Arena → what could not be written."""
        self._writing: tuple[str, threading.Event] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="images", daemon=True)

    def start(self) -> None:
        """Once the image store is open."""
        if self._images.usable:
            self._thread.start()

    def close(self, seconds: float) -> bool:
        """Stop writing; True when the thread ended in time."""
        with self._changed:
            self._closed = True
            self._stop_writing()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def update(self, sealed: Iterable[Arena]) -> None:
        """All sealed arenas of this node, in every round: those without an image get one, and the writer lets go of the
        one that it writes when that is no longer among them."""
        with self._changed:
            self._sealed = {arena.name: arena for arena in sealed}
            if self._writing is not None and self._writing[0] not in self._sealed:
                self._stop_writing()
            if self._missing() is not None:
                self._changed.notify_all()

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing[1].set()

    def _missing(self) -> Arena | None:
        """A sealed arena that has no image of its bytes and its layout."""
        for name, arena in self._sealed.items():
            digests = _digests(arena.record)
            manifest = self._images.find(name)
            if (manifest is None or _digests(manifest) != digests) and self._refused.get(name) != digests:
                return arena
        return None

    def _run(self) -> None:
        while self._write_next():
            pass  # in a function of its own: no name of ours may keep an arena that was dropped

    def _write_next(self) -> bool:
        """Wait for an arena without an image and write it; False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._missing() is not None)
            arena = self._missing()
            if self._closed or arena is None:
                return False
            stop = threading.Event()
            self._writing = (arena.name, stop)
        try:
            self._write(arena, stop)
        except (Stopped, UnknownArena, ArenaUpdating) as error:
            log.info("image not written now", arena=arena.name, why=str(error))
            with self._changed:  # the next round brings the new list
                if self._sealed.get(arena.name) is arena:
                    del self._sealed[arena.name]
        except OSError as error:
            self._refuse(arena, f"{self._images.folder}: {error.strerror}")
        finally:
            with self._changed:
                self._writing = None
        return True

    def _write(self, arena: Arena, stop: threading.Event) -> None:
        meta, record = arena.meta, arena.record
        manifest = Manifest(
            **record.owner(),
            identity=meta.identity,
            digest=meta.digest,
            layout_digest=meta.layout_digest,
            bytes=meta.nbytes,
            version=meta.version,
            written_at=now(),
        )
        size = image_size(manifest, meta.layout, meta.chunk_digests)
        if size > self._images.budget:
            self._refuse(arena, f"{size} bytes are more than FLASHBOOT_IMAGES_BUDGET_BYTES={self._images.budget}")
            return
        if not self._images.make_room(size, arena.name):
            raise Stopped("the images that would have to go are being read")
        began = time.monotonic()
        with arena.reading(), arena.whole() as data:
            write_image(
                self._images.path(arena.name),
                manifest,
                meta.layout,
                meta.chunk_digests,
                data,
                bytes_per_second=self._rate,
                stop=stop,
            )
        seconds = round(time.monotonic() - began, 3)
        log.info("image written", arena=arena.name, bytes=size, seconds=seconds)
        self._images.add(manifest, size)

    def _refuse(self, arena: Arena, why: str) -> None:
        log.error("image not written", arena=arena.name, why=why)
        with self._changed:
            self._refused[arena.name] = _digests(arena.record)


def _digests(what: ArenaRecord | Manifest) -> Digests:
    return what.digest, what.layout_digest
