"""Where a chain is published, as its readers see it; and the simplest one, a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from flashboot_agent.core.errors import NotReady
from flashboot_agent.sync import chain_file
from flashboot_agent.sync.chain import Step

PART: Final = ".part"
"""How the name of a file in a spool folder ends."""


class Origin(ABC):
    """`str()` names it in messages."""

    @abstractmethod
    def chain(self) -> bytes:
        """The chain document as it is now, MAX_BYTES of it at most and a byte more.

        Raises NotReady when nothing is published yet, DeltaUnreachable, OSError."""

    @abstractmethod
    def delta(self, step: Step, spool: Path) -> AbstractContextManager[Path]:
        """The file of a step, there while the context is; not believed by anybody yet. `spool`: for files that go then.

        Raises DeltaUnreachable, DeltaDamaged, DeadlineExceeded, DiskFull, OSError."""


class DirectoryOrigin(Origin):
    """A publisher's folder on this machine, or on a file system that both have."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def chain(self) -> bytes:
        path = self._folder / chain_file.NAME
        try:
            with open(path, "rb") as file:
                return file.read(chain_file.MAX_BYTES + 1)
        except FileNotFoundError:
            raise NotReady(f"{path} is not there: nothing is published in this folder yet") from None

    @contextmanager
    def delta(self, step: Step, spool: Path) -> Iterator[Path]:
        yield self._folder / step.file

    def __str__(self) -> str:
        return str(self._folder)
