"""Writing where the disk may be full, and others may write: errors of their own, and files of one writer alone."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from flashboot_agent.core.errors import BadRequest, DiskFull

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def room_in(folder: Path, what: str = "") -> Iterator[None]:
    """Raises DiskFull for what the system says about room; other errors pass. `what` is written there, for people."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            began = f"{what}: " if what else ""
            raise DiskFull(f"{began}{folder}: {error.strerror}; make room there and try again") from error
        raise


def open_alone(temporary: Path, path: Path) -> BinaryIO:
    """An empty file that will be `path`; what a killed writer left under its temporary name is taken over.

    Raises BadRequest when another writer has it, OSError."""
    while True:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            if _taken(fd, temporary, path):
                os.ftruncate(fd, 0)
                return os.fdopen(fd, "wb")
        except BaseException:  # whatever it was: it is not the caller's
            os.close(fd)
            raise
        os.close(fd)  # its writer came to the end between our two looks


def _taken(fd: int, temporary: Path, path: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(temporary))
    except BlockingIOError:
        raise BadRequest(f"{path}: another process is writing it") from None
    except FileNotFoundError:
        return False
