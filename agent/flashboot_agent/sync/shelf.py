"""The folder of a publisher: its deltas and the chain that names them.

Holds always: a delta is on disk before the chain names it, and the chain no longer names one that is removed; the chain
is replaced as a whole. So a reader sees one of two states whenever the publisher dies, and files that the chain does
not name are removed by the next one. One publisher at a time has the folder.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta.disk import room_in
from flashboot_agent.delta.document import Contents
from flashboot_agent.delta.file import TEMPORARY
from flashboot_agent.files import write_atomically
from flashboot_agent.sync import chain_file
from flashboot_agent.sync.chain import Chain, Retention, Step, file_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


_OURS: Final = re.compile(r"\d+-\d+\.delta(" + re.escape(TEMPORARY) + ")?")


class Shelf:
    def __init__(self, folder: Path, key: Ed25519PrivateKey | None, retention: Retention) -> None:
        """Raises BadRequest when another process publishes there, DeltaDamaged, DeltaUntrusted, OSError."""
        self.folder, self._key, self._retention = folder, key, retention
        self.trusted = [key.public_key()] if key else None
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._take()
            self.chain = self._settle()
        except BaseException:  # whatever it was: the lock goes
            os.close(self._lock)
            raise

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadRequest(f"{self.folder}: another process publishes there; give each publisher its own") from None

    def start(self, chain: Chain) -> None:
        """A new chain, of one version. Raises DiskFull, OSError."""
        self._replace(chain)

    def put(self, base: int, new: int, write: Callable[[Path], Contents]) -> Step:
        """Let a delta be written, and publish it; on any error nothing is left of it.

        Raises DiskFull, BadRequest, OSError, what `write` raises."""
        chain = self.require_chain()
        path = self.folder / file_name(base, new)
        if any(step.file == path.name for step in chain.steps):
            raise BadRequest(f"{path} is published already")
        try:
            with room_in(self.folder):
                step = _step(write(path), path.stat().st_size)
                self._replace(chain.plus(step).kept(self._retention))
        except BaseException:  # whatever it was: what the chain on disk says is what there is
            self.chain = self._settle()
            raise
        self._remove_unnamed(self.chain)
        return step

    def require_chain(self) -> Chain:
        """Raises BadRequest."""
        if self.chain is None:
            raise BadRequest(f"{self.folder}: nothing is published yet; commit the version that receivers have first")
        return self.chain

    def close(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # processes that were forked meanwhile, to load data, have it, too
        os.close(self._lock)

    def _replace(self, chain: Chain) -> None:
        with room_in(self.folder):
            write_atomically(self.folder / chain_file.NAME, chain_file.to_bytes(chain, self._key))
        self.chain = chain

    def _settle(self) -> Chain | None:
        """The chain on disk, alone: deltas that it does not name are removed, whole or not."""
        path = self.folder / chain_file.NAME
        try:
            chain = chain_file.from_bytes(path.read_bytes(), self.trusted, str(path))
        except FileNotFoundError:
            chain = None
        self._remove_unnamed(chain)
        return chain

    def _remove_unnamed(self, chain: Chain | None) -> None:
        """Of files that a publisher makes, those that the chain does not name; without a chain none was made here."""
        named = {step.file for step in chain.steps} if chain else set()
        for file in self.folder.iterdir() if chain else ():
            if _OURS.fullmatch(file.name) and file.name not in named:
                with suppress(OSError):  # nobody reads it, and the next turn tries again
                    file.unlink()


def _step(contents: Contents, nbytes: int) -> Step:
    metadata = contents.metadata
    return Step(
        base_version=metadata.base_version,
        new_version=metadata.new_version,
        base_digest=metadata.base_digest,
        result_digest=metadata.result_digest,
        nbytes=nbytes,
        front_digest=document_digest(contents.to_bytes()),
    )
