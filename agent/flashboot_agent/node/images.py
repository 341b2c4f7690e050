"""Arena images on this node's disk: which there are, who reads them, and which goes when room is needed.

Holds always: the images take at most the budget; the least recently used go first, one that is being read never does;
an image that was found damaged is gone. Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashboot_agent.core.errors import ImageDamaged, UnknownArena
from flashboot_agent.load.image import NOT_THE_IMAGE, Image, Manifest, open_image
from flashboot_agent.load.image_write import clean
from flashboot_agent.logs import Log
from flashboot_agent.wire.problem import Problem

log = Log(__name__)

SUFFIX: Final = ".image"


@dataclass(frozen=True)
class Kept:
    """An image in the folder."""

    manifest: Manifest
    file_bytes: int


class ImageStore:
    """One folder, which belongs to this agent alone; one image for each arena name."""

    def __init__(self, folder: Path, budget: int, notify: Callable[[], None]) -> None:
        """`budget` in bytes; 0: no images are kept or used. `notify` is called when an image comes or goes."""
        self.folder = folder
        self.budget = budget
        self.usable = False
        """After `open`: whether images are kept here at all."""
        self.damages = 0
        """How many were not believed since the start."""
        self._notify = notify
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._reading: dict[str, int] = {}
        self._problems: dict[str, Problem] = {}

    def open(self) -> None:
        """Learn what is there, remove what killed writers left and what is beyond the budget. Slow. A folder that can't
        be used is told, and then there are no images."""
        if self.budget == 0:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in clean(self.folder):
                log.warning("half an image removed", file=name)
            paths = list(self.folder.glob(f"*{SUFFIX}"))
        except OSError as error:
            log.error("no images: the folder can't be used", folder=str(self.folder), why=error.strerror)
            return
        for path in paths:
            try:
                with open_image(path) as image:
                    if path != self.path(image.manifest.arena):
                        raise ImageDamaged(f"{path}: it is of {image.manifest.arena}")
                    self._kept[image.manifest.arena] = Kept(image.manifest, os.fstat(image.fd).st_size)
            except ImageDamaged as error:
                self.damages += 1
                self._remove(path, f"damaged: {error}")
        self.usable = self.make_room(0, "")
        log.info("images found", folder=str(self.folder), images=len(self._kept), bytes=self.used_bytes)

    @property
    def used_bytes(self) -> int:
        with self._lock:
            return self._used()

    def find(self, arena: str) -> Manifest | None:
        with self._lock:
            kept = self._kept.get(arena)
            return kept.manifest if kept else None

    def all(self) -> list[Manifest]:
        """By name of their arenas."""
        with self._lock:
            return [self._kept[arena].manifest for arena in sorted(self._kept)]

    def problem(self, arena: str) -> Problem | None:
        """How the last image of this arena was damaged, until there is a new one."""
        with self._lock:
            return self._problems.get(arena)

    @contextmanager
    def reading(self, arena: str) -> Iterator[Image]:
        """The open image, which stays while it is read and counts as used now.

        Raises UnknownArena when there is none, ImageDamaged (call `damaged` then), OSError that is this node's."""
        with self._lock:
            if arena not in self._kept:
                raise UnknownArena(f"no image of {arena} is on this node")
            self._reading[arena] = self._reading.get(arena, 0) + 1
        try:
            with ExitStack() as stack:
                try:
                    os.utime(self.path(arena))
                    image = stack.enter_context(open_image(self.path(arena)))
                except OSError as error:
                    if error.errno in NOT_THE_IMAGE:
                        raise
                    raise ImageDamaged(f"{self.path(arena)} can't be opened: {error.strerror}") from error
                yield image
        finally:
            with self._lock:
                self._reading[arena] -= 1

    def damaged(self, arena: str, error: ImageDamaged) -> None:
        """It can't be believed: it goes, and nobody tries it again."""
        with self._lock:
            self._kept.pop(arena, None)
            self._problems[arena] = error.problem()
            self.damages += 1
        self._remove(self.path(arena), f"damaged: {error}")
        self._notify()

    def make_room(self, size: int, arena: str) -> bool:
        """Remove the least recently used images until `size` more bytes fit, the old one of `arena` first. False, and
        nothing is removed, when they never can; False too while images that are being read stand in the way."""
        while size <= self.budget:
            with self._lock:
                if arena not in self._kept and self._used() + size <= self.budget:
                    return True
                idle = [name for name in self._kept if not self._reading.get(name)]
                if not idle:
                    return False
                oldest = arena if arena in idle else min(idle, key=self._used_at)
                del self._kept[oldest]
            self._remove(self.path(oldest), "room is needed, and it is the least recently used")
            self._notify()
        return False

    def add(self, manifest: Manifest, file_bytes: int) -> None:
        """An image was written to `path(manifest.arena)`."""
        with self._lock:
            self._kept[manifest.arena] = Kept(manifest, file_bytes)
            self._problems.pop(manifest.arena, None)
        self._notify()

    def path(self, arena: str) -> Path:
        return self.folder / f"{arena}{SUFFIX}"

    def _used(self) -> int:
        """Bytes of all images. Under the lock."""
        return sum(kept.file_bytes for kept in self._kept.values())

    def _used_at(self, arena: str) -> int:
        try:
            return self.path(arena).stat().st_mtime_ns
        except OSError:  # somebody took it away: the first to go
            return 0

    def _remove(self, path: Path, why: str) -> None:
        log.warning("image removed", file=path.name, why=why)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.error("image can't be removed", file=path.name, why=error.strerror)
