"""Where a chain is published, as its readers see it; and the simplest one, a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from flashboot_agent.core.checkpoint import open_file
from flashboot_agent.core.errors import NotReady
from flashboot_agent.delta.file import Delta, open_delta
from flashboot_agent.sync import chain_file
from flashboot_agent.sync.chain import Step

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Progress = Callable[[Step, int], None]
"""Called with how many bytes of a delta are here and verified, also each second while no more come; in any thread. What
it raises ends receiving."""


class Origin(ABC):
    """`str()` names it in messages."""

    @abstractmethod
    def chain(self) -> bytes:
        """The chain document as it is now, MAX_BYTES of it at most and a byte more.

        Raises NotReady when nothing is published yet, DeltaUnreachable, OSError."""

    @abstractmethod
    def delta(
        self,
        step: Step,
        spool: Path,
        trusted: Sequence[Ed25519PublicKey] | None,
        *,
        keep: bool = False,
        progress: Progress = lambda step, nbytes: None,
    ) -> AbstractContextManager[Delta]:
        """A step's delta, open while the context is; maybe still coming, so that its bodies raise what goes wrong.

        `spool`: a folder for what comes over a network. It stays there when the connection or the time was what went
        wrong, or this process ends, and is taken up by the next call; or when all went well and `keep` says so.

        Raises DeltaUnreachable, DeltaDamaged, DeltaUntrusted, DeadlineExceeded, DiskFull, BadRequest, OSError."""


class DirectoryOrigin(Origin):
    """A publisher's folder on this machine, or on a file system that both have. Deltas are read where they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def chain(self) -> bytes:
        path = self._folder / chain_file.NAME
        try:
            with open_file(path, NotReady) as file:
                return file.read(chain_file.MAX_BYTES + 1)
        except NotReady:
            raise NotReady(f"{path} is not there: nothing is published in this folder yet") from None

    @contextmanager
    def delta(
        self,
        step: Step,
        spool: Path,
        trusted: Sequence[Ed25519PublicKey] | None,
        *,
        keep: bool = False,
        progress: Progress = lambda step, nbytes: None,
    ) -> Iterator[Delta]:
        with open_delta(self._folder / step.file, trusted) as delta:
            yield delta

    def __str__(self) -> str:
        return str(self._folder)
