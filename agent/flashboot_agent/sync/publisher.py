"""The trainer's side: versions of weights in, a chain of deltas in a folder out, while training goes on.

    with Publisher(folder, TensorPlaces(specs)) as publisher:
        publisher.begin(0); publisher.add(name, data); …; publisher.commit()     # what receivers have already
        publisher.begin(1); publisher.add(name, data); …; publisher.commit()     # encoded in a thread from here on

Two images are kept: the last version, which is the next delta's base, and the one that is being added or encoded.
Holds always: a version is published whole or not at all, and a version that could not be published costs nothing: the
next one's delta begins where the last published one ended. For one thread of the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded
from flashboot_agent.delta.make import CLASSES
from flashboot_agent.delta.source import Source
from flashboot_agent.sync.chain import Retention
from flashboot_agent.sync.draft import Draft, dense
from flashboot_agent.sync.press import Press, Published
from flashboot_agent.sync.shared_images import SharedImages
from flashboot_agent.sync.shelf import Shelf
from flashboot_agent.sync.tensors import Box, Places, TensorSpec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from typing_extensions import Buffer

KEEP: Final = Retention()
WAIT_SECONDS: Final = 600.0
VERSIONS: Final = 1 << 63


class Pending:
    """What was handed to the thread."""

    def __init__(self, what: str, future: Future[Published]) -> None:
        self._what, self._future, self._told = what, future, False

    def result(self, seconds: float = WAIT_SECONDS) -> Published:
        """Wait for it. Raises DeadlineExceeded, DiskFull, OSError, DeltaBaseMismatch, what else went wrong there."""
        self._wait(seconds)
        self._told = True
        return self._future.result()

    def settle(self, seconds: float) -> None:
        """Wait for it; raises as `result`, but a failure that was told is not told again."""
        self._wait(seconds)
        if not self._told:
            self.result(seconds)

    def _wait(self, seconds: float) -> None:
        try:
            self._future.exception(seconds)
        except TimeoutError:
            raise DeadlineExceeded(f"{self._what} is not done after {seconds:g} s") from None


class Publisher:
    def __init__(
        self,
        folder: Path,
        places: Places,
        *,
        key: Ed25519PrivateKey | None = None,
        retention: Retention = KEEP,
        shared: SharedImages | None = None,
        classes: int = CLASSES,
        threads: int = 1,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        """`shared`: images that other processes write shards to, too (sync/shard_writer.py). `classes`, `threads`: of
        the encoder. `wait_seconds`: what a call waits for the thread, or for other processes, at most.

        Raises BadRequest when another process publishes there or the chain there is of other tensors, DeltaDamaged,
        DeltaUntrusted (the chain there is not signed by this key), OSError."""
        self._places, self._shared, self._wait_seconds = places, shared, wait_seconds
        self._shelf = Shelf(folder, key, retention)
        try:
            images = shared.images if shared else None
            self._press = Press(self._shelf, places, key=key, images=images, classes=classes, threads=threads)
        except BaseException:  # whatever it was: another one may publish there
            self._shelf.close()
            raise
        self._draft: Draft | None = None
        self._committed: Draft | None = None
        self._lost: set[str] = set()
        """Tensors that were added last to a version which is not the chain's newest: it could not be published, or this
        publisher went on from an older one."""
        self._pending: Pending | None = None
        self._closed = False
        self._worker = ThreadPoolExecutor(1, "flashboot-publish")

    @property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """All of them are in each version."""
        return self._places.tensors

    @property
    def version(self) -> int | None:
        """The newest one that is published; the next one's number is above it."""
        return self._shelf.chain.version if self._shelf.chain else None

    def begin(self, version: int) -> None:
        """Begin a version, once the last one is published. The first that a Publisher is given is one that receivers
        have: of a new chain any, of a chain that is there one of its versions, from which this comes to the newest.

        Raises BadRequest, DeadlineExceeded, and what went wrong with the last commit if nobody was told."""
        if self._closed:
            raise BadRequest(f"{self._shelf.folder}: this publisher is closed")
        if self._draft:
            raise BadRequest(f"version {self._draft.version} is begun: commit() or abandon() it before {version}")
        if self._pending:
            self._pending.settle(self._wait_seconds)
        self._account()
        if not 0 <= version < VERSIONS:
            raise BadRequest(f"{self._shelf.folder}: version {version} is none: they go from 0 to 2^63 - 1")
        if self._press.has_base and version <= self._shelf.require_chain().version:
            raise BadRequest(f"{self._shelf.folder}: version {self.version} is published; the next one is above it")
        if self._shared:
            self._shared.begin(version, self._places.content, self._press.staging, self._wait_seconds)
        self._draft = Draft(version, self._places.tensors)

    def _account(self) -> None:
        """What became of the last commit, which has ended."""
        if self._committed:
            published = self._press.has_base and self.version == self._committed.version
            self._lost = set() if published else self._lost | self._committed.added
            self._committed = None

    def add(self, name: str, data: Buffer, box: Box | None = None) -> None:
        """The bytes of a tensor, or of the part that `box` tells, dense and in the order of rows. They are copied.

        Raises BadRequest, nothing is added then."""
        draft = self._require_draft()
        view = dense(draft, name, data)
        box = draft.checked(name, box, view.nbytes)
        self._places.write(name, box, view, self._press.staging)
        draft.add(name, box)

    def keep(self, name: str) -> None:
        """A tensor is as it was in the last version. Raises BadRequest, also when that is not the newest of the chain:
        the trainer would mean other bytes than receivers have."""
        draft, press = self._require_draft(), self._press
        if not press.has_base:
            raise BadRequest(f"version {draft.version} is the first one here: {name} has nothing to be kept as; add it")
        if name in self._lost:
            raise BadRequest(
                f"version {draft.version}: {name} as it was added last is not in version {self.version}, the newest: "
                "add it, don't keep it"
            )
        draft.keep(name)
        self._places.copy(name, press.base, press.staging)

    def commit(self, note: str = "") -> Pending:
        """Hand the version to the thread, once other processes have written their shards.

        Raises BadRequest when something of it is missing; it can be added then. DeadlineExceeded, OSError."""
        draft = self._require_draft()
        if self._shared:
            self._take_shards(draft, self._shared)
        draft.require_whole()
        self._draft, self._committed = None, draft
        what = f"{self._shelf.folder}: publishing version {draft.version}"
        self._pending = Pending(what, self._worker.submit(self._press.publish, draft.version, note))
        return self._pending

    def abandon(self) -> None:
        """Forget what was begun."""
        self._draft = None

    def compact(self, base: Source, version: int) -> Pending:
        """Publish one delta more, from `version`, whose bytes are `base` (a checkpoint that was saved then), to the
        newest one; `base` is read in the thread."""
        what = f"{self._shelf.folder}: merging the deltas from version {version} on"
        return Pending(what, self._worker.submit(self._press.merge, base, version))

    def close(self) -> None:
        """Wait for what is in the thread, and let another one publish there. Raises as `begin`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.abandon()
        try:
            if self._pending:
                self._pending.settle(self._wait_seconds)
        finally:
            closed = self._worker.submit(self._shelf.close)  # the lock goes when nothing writes any more
            self._worker.shutdown(wait=False)
            wait([closed], self._wait_seconds)
        if not closed.done():
            raise DeadlineExceeded(f"{self._shelf.folder}: merging is not done after {self._wait_seconds:g} s")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_shards(self, draft: Draft, images: SharedImages) -> None:
        for name, box in images.collect(self._wait_seconds):
            try:
                draft.take(name, box)
            except BadRequest:
                self.abandon()  # two have written the same place: who is right, nobody knows
                raise

    def _require_draft(self) -> Draft:
        if self._draft is None:
            raise BadRequest(f"{self._shelf.folder}: no version is begun; begin() one first")
        return self._draft
