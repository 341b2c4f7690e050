"""What the publisher's thread does: the two images, and how one of them becomes a delta in the folder.

Holds always: the base is the newest version of the chain on disk, or there is none yet; only a version that the chain
names becomes the base. The caller writes to `staging` only while nothing runs here.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch
from flashboot_agent.delta.apply import apply_to
from flashboot_agent.delta.document import Contents
from flashboot_agent.delta.file import open_delta
from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource, Source
from flashboot_agent.sync.chain import Chain, Step, few, way
from flashboot_agent.sync.merge import Result
from flashboot_agent.sync.shelf import Shelf
from flashboot_agent.sync.tensors import Places

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class Published:
    version: int
    """The newest one then."""
    digest: str
    step: Step | None
    """None: a first version, of which receivers have the bytes."""
    seconds: float
    """In the thread."""


class Press:
    def __init__(
        self,
        shelf: Shelf,
        places: Places,
        *,
        key: Ed25519PrivateKey | None,
        images: tuple[memoryview, memoryview] | None,
        classes: int,
        threads: int,
    ) -> None:
        """`images`: zeros, of which others may write to the staging one; None: of its own.

        Raises BadRequest when the chain there is of other tensors."""
        self._shelf, self._places, self._key, self._classes, self._threads = shelf, places, key, classes, threads
        _require_same(shelf, places)
        self.base, self.staging = images or (_private(places.nbytes), _private(places.nbytes))
        for image in (self.base, self.staging):
            places.fill(image)
        self.has_base = False

    def publish(self, version: int, note: str) -> Published:
        """`staging` is this version, whole. Raises DiskFull, OSError, DeltaBaseMismatch, DeltaDamaged."""
        began = time.monotonic()
        new = self._source(self.staging, version)
        step: Step | None = None
        if not self.has_base:
            self._take_base(version, new)
            self._swap()
        else:
            base = self._shelf.require_chain().version
            old = self._source(self.base, base)
            try:
                step = self._shelf.put(base, version, self._writer(old, new, Versions(base, version), note))
            finally:  # also when an error came after the chain was replaced
                if self._shelf.require_chain().version == version:
                    self._swap()
        return self._done(step, began)

    def merge(self, base: Source, version: int) -> Published:
        """Publish one delta from `version`, whose bytes `base` has, to the newest one. Raises as `publish`,
        BadRequest, what `base` raises."""
        began = time.monotonic()
        chain, folder = self._shelf.require_chain(), self._shelf.folder
        if (digest := chain.digests().get(version)) is None:
            raise BadRequest(f"{folder}: no delta begins at version {version}: nothing can be merged from there")
        steps = way(chain, version, digest, None, str(folder))
        if len(steps) < 2:
            raise BadRequest(f"{folder}: version {chain.version} is one delta away from {version} already")
        with ExitStack() as stack:
            deltas = [stack.enter_context(open_delta(folder / step.file, self._shelf.trusted)) for step in steps]
            result = Result(base, deltas, threads=self._threads)
            versions = Versions(version, chain.version)
            step = self._shelf.put(version, chain.version, self._writer(base, result, versions, "merged"))
        return self._done(step, began)

    def _writer(self, old: Source, new: Source, versions: Versions, note: str) -> Callable[[Path], Contents]:
        def write(path: Path) -> Contents:
            contents = make(
                old, new, path, versions, classes=self._classes, threads=self._threads, key=self._key, note=note
            )
            was = self._shelf.require_chain().digests()[versions.base]
            if contents.metadata.base_digest != was:
                raise DeltaBaseMismatch(
                    f"{path}: {old} has {contents.metadata.base_digest}, published was {was}: its bytes were changed; "
                    "start anew from a saved version"
                )
            return contents

        return write

    def _take_base(self, version: int, source: MemorySource) -> None:
        """A new chain's first version; or a version of the chain there, which becomes the newest one in place."""
        digest = root_digest(chunk_digests(source.memory, self._threads))
        places, chain = self._places, self._shelf.chain
        if chain is None:
            self._shelf.start(
                Chain(
                    subject=places.subject,
                    content=places.content,
                    image_bytes=places.nbytes,
                    version=version,
                    digest=digest,
                )
            )
            return
        if version not in chain.digests():
            raise BadRequest(
                f"{self._shelf.folder}: version {version} is not in the chain there, which has {few(chain.digests())}: "
                "begin with the weights of one of these (a saved checkpoint), or publish to another folder"
            )
        for step in way(chain, version, digest, None, str(self._shelf.folder)):
            with open_delta(self._shelf.folder / step.file, self._shelf.trusted) as delta:
                apply_to(delta, source, lambda offset, view: None, threads=self._threads)

    def _done(self, step: Step | None, began: float) -> Published:
        chain = self._shelf.require_chain()
        return Published(chain.version, chain.digest, step, time.monotonic() - began)

    def _swap(self) -> None:
        self.base, self.staging = self.staging, self.base
        self.has_base = True

    def _source(self, memory: memoryview, version: int) -> MemorySource:
        places, name = self._places, f"{self._shelf.folder}, version {version}"
        return MemorySource(memory, places.runs, places.content, name, subject=places.subject)


def _private(nbytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, nbytes))


def _require_same(shelf: Shelf, places: Places) -> None:
    mine = (places.subject, places.content, places.nbytes)
    chain = shelf.chain
    if chain and (chain.subject, chain.content, chain.image_bytes) != mine:
        raise BadRequest(
            f"{shelf.folder} has a chain of {chain.subject} {chain.content} ({chain.image_bytes} bytes), these tensors "
            f"are {places.subject} {places.content} ({places.nbytes} bytes); publish them to another folder"
        )
