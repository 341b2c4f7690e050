"""A trainer's process that has shards and does not publish: it writes them into the image of the one that does.

    writer = ShardWriter(Path("/dev/shm/weights"), places, rank=3)
    writer.begin(1); writer.add(name, data, box); …; writer.commit()        # the publisher's commit() waits for that

For one thread, on the publisher's node: sync/shared.py says what the processes share.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded
from flashboot_agent.files import write_atomically
from flashboot_agent.sync import shared
from flashboot_agent.sync.draft import Draft, dense
from flashboot_agent.sync.shared import BEGUN, LOOK_SECONDS, Begun, Share
from flashboot_agent.sync.tensors import Box, Places, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ShardWriter:
    def __init__(self, folder: Path, places: Places, rank: int, *, wait_seconds: float = 600.0) -> None:
        """`rank`: one of the publisher's `writers`. `wait_seconds`: what `begin` waits for the publisher at most."""
        self._folder, self._places, self._rank, self._wait_seconds = folder, places, rank, wait_seconds
        self._images: dict[int, tuple[int, memoryview]] = {}
        self._open: tuple[Begun, int, memoryview] | None = None
        self._draft: Draft | None = None

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        return self._places.tensors

    def begin(self, version: int) -> None:
        """Wait until the publisher has begun it. Raises DeadlineExceeded, BadRequest, OSError."""
        if self._draft:
            raise BadRequest(f"{self}: version {self._draft.version} is begun: commit() or abandon() it first")
        deadline = time.monotonic() + self._wait_seconds
        while not self._opened(begun := shared.read(self._folder / BEGUN, Begun), version):
            if time.monotonic() > deadline:
                there = f"version {begun.version}" if begun else "nothing"
                raise DeadlineExceeded(
                    f"{self}: the publisher has not begun version {version} after {self._wait_seconds:g} s; "
                    f"begun is {there}"
                )
            time.sleep(LOOK_SECONDS)
        self._draft = Draft(version, self._places.tensors)

    def add(self, name: str, data: Buffer, box: Box | None = None) -> None:
        """As Publisher.add. Raises BadRequest, nothing is written then."""
        draft, image = self._require_draft(), self._require_open()[2]
        view = dense(draft, name, data)
        box = draft.checked(name, box, view.nbytes)
        self._places.write(name, box, view, image)
        draft.add(name, box)

    def commit(self) -> None:
        """All shards of this process are written. Raises OSError."""
        draft, (begun, _, _) = self._require_draft(), self._require_open()
        share = Share(token=begun.token, boxes=[(name, box.offsets, box.shape) for name, box in draft.boxes()])
        write_atomically(self._folder / shared.share_name(self._rank), share.to_json(), mode=0o600)
        self.abandon()

    def abandon(self) -> None:
        """Write no more of what was begun. After a commit(): nothing."""
        if self._open:
            fcntl.flock(self._open[1], fcntl.LOCK_UN)
        self._open = self._draft = None

    def close(self) -> None:
        self.abandon()
        for number in list(self._images):
            self._forget(number)

    def _opened(self, begun: Begun | None, version: int) -> bool:
        """Whether this is the version that is begun, and its image may be written to from now on."""
        if begun is None or begun.version < version:
            return False
        if begun.version > version:
            raise BadRequest(f"{self}: version {begun.version} is begun, not {version}")
        mine = (self._places.content, self._places.nbytes)
        if (begun.content, begun.nbytes) != mine:
            raise BadRequest(
                f"{self}: the publisher's tensors are {begun.content} ({begun.nbytes} bytes), these are {mine[0]} "
                f"({mine[1]} bytes)"
            )
        try:
            descriptor, image = self._image(begun)
        except FileNotFoundError:  # the publisher has just ended
            return False
        if not shared.lock(descriptor, fcntl.LOCK_SH):
            return False  # it ends its version, or is about to let others write
        if shared.read(self._folder / BEGUN, Begun) != begun:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return False
        self._open = begun, descriptor, image
        return True

    def _image(self, begun: Begun) -> tuple[int, memoryview]:
        """Kept from version to version, because its pages would have to be mapped again."""
        path = self._folder / shared.image_name(begun.image)
        there = path.stat()
        known = self._images.get(begun.image)
        if known:
            mine = os.fstat(known[0])
            if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
                return known
            self._forget(begun.image)  # of a publisher before this one
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = memoryview(mmap.mmap(descriptor, begun.nbytes))
        except BaseException:  # whatever it was: nobody else will close it
            os.close(descriptor)
            raise
        self._images[begun.image] = descriptor, mapped
        return descriptor, mapped

    def _forget(self, number: int) -> None:
        descriptor, image = self._images.pop(number)
        image.release()
        os.close(descriptor)

    def _require_draft(self) -> Draft:
        if self._draft is None:
            raise BadRequest(f"{self}: no version is begun; begin() one first")
        return self._draft

    def _require_open(self) -> tuple[Begun, int, memoryview]:
        assert self._open is not None, "it is open while there is a draft"
        return self._open

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self._folder}, rank {self._rank}"
