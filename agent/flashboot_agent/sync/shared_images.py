"""The publisher's two images in memory that other processes of the node write their shards to (sync/shared.py).

    with SharedImages(Path("/dev/shm/weights"), places.nbytes, writers=range(1, 8)) as images:
        with Publisher(folder, places, shared=images) as publisher: …

No tensor is gathered, and no shard is copied twice; it costs no more memory, because the images are the publisher's.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded
from flashboot_agent.delta.disk import room_in
from flashboot_agent.files import write_atomically
from flashboot_agent.sync import shared
from flashboot_agent.sync.shared import BEGUN, LOOK_SECONDS, Begun, Share
from flashboot_agent.sync.tensors import Box

STEP: Final = 256 << 20
"""Bytes that are made present at a time, so that a signal comes through."""


class SharedImages:
    def __init__(self, folder: Path, nbytes: int, writers: Collection[int]) -> None:
        """`nbytes`: of an image; two are made present at once. `writers`: ranks of the other processes.

        Raises BadRequest when another publisher has the folder, DiskFull, OSError."""
        self.folder, self._writers = folder, frozenset(writers)
        self._begun: Begun | None = None
        self._collected = False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._files: list[int] = []
        if not shared.lock(self._folder, fcntl.LOCK_EX):
            os.close(self._folder)
            raise BadRequest(f"{folder}: another process publishes there; give each publisher its own")
        try:
            self._clean()
            self.images = self._image(0, nbytes), self._image(1, nbytes)
        except BaseException:  # whatever it was: what was made goes
            self.close()
            raise

    def begin(self, version: int, content: str, image: memoryview, seconds: float) -> None:
        """Let the others write this version to `image`. Raises DeadlineExceeded, OSError."""
        number = next(number for number, mine in enumerate(self.images) if mine is image)
        self._shut(number, seconds)
        self._collected = False
        self._begun = Begun(
            token=secrets.token_hex(8), version=version, image=number, content=content, nbytes=image.nbytes
        )
        write_atomically(self.folder / BEGUN, self._begun.to_json(), mode=0o600)
        fcntl.flock(self._files[number], fcntl.LOCK_UN)

    def collect(self, seconds: float) -> list[tuple[str, Box]]:
        """The shards that the others have written, once all are done; none of them can write any more then. A second
        time, of the same version: nothing.

        Raises DeadlineExceeded, which names the ranks that are missing, BadRequest, OSError."""
        if self._begun is None or self._collected:
            return []
        deadline = time.monotonic() + seconds
        done: dict[int, Share] = {}
        while missing := sorted(self._writers - done.keys()):
            found = {rank: shared.read(self.folder / shared.share_name(rank), Share) for rank in missing}
            mine = {rank: share for rank, share in found.items() if share and share.token == self._begun.token}
            done |= mine
            if not mine and time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"{self.folder}: version {self._begun.version}: ranks {', '.join(map(str, missing))} are not done "
                    f"after {seconds:g} s; commit() once more when they are, or abandon() it"
                )
            if not mine:
                time.sleep(LOOK_SECONDS)
        self._shut(self._begun.image, max(1.0, deadline - time.monotonic()))
        self._collected = True
        return [(name, Box(offsets, shape)) for rank in sorted(done) for name, offsets, shape in done[rank].boxes]

    def close(self) -> None:
        """Idempotent. The memory stays with whoever has it mapped."""
        if self._folder < 0:
            return
        self._clean()
        for descriptor in (*self._files, self._folder):
            os.close(descriptor)
        self._folder = -1
        with suppress(OSError):  # others keep something there
            self.folder.rmdir()

    def _shut(self, number: int, seconds: float) -> None:
        """Nobody begins to write, and those who do are waited for. Raises DeadlineExceeded."""
        (self.folder / BEGUN).unlink(missing_ok=True)
        deadline = time.monotonic() + seconds
        while not shared.lock(self._files[number], fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"{self.folder}: a process still writes shards after {seconds:g} s; it has to commit() or abandon()"
                )
            time.sleep(LOOK_SECONDS)
        self._remove_shares()

    def _image(self, number: int, nbytes: int) -> memoryview:
        """Zeros that are there: a page that could not be had later would end the process that touches it."""
        path = self.folder / shared.image_name(number)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._files.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with room_in(self.folder):
            for begin in range(0, nbytes, STEP):
                os.posix_fallocate(descriptor, begin, min(STEP, nbytes - begin))
        return memoryview(mmap.mmap(descriptor, nbytes))

    def _clean(self) -> None:
        for name in (BEGUN, f"{BEGUN}.new", *map(shared.image_name, range(2))):
            (self.folder / name).unlink(missing_ok=True)
        self._remove_shares()

    def _remove_shares(self) -> None:
        for path in self.folder.glob(shared.share_name("*")):
            path.unlink(missing_ok=True)

    def __enter__(self) -> SharedImages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
