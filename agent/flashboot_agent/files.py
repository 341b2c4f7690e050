"""A small file that is whole, or as it was before. Standard library only, and beside the layers: many keep one."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """All of it or what was there before, on disk when this returns. Makes the folder (0700). Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)  # left by a crash: its mode may be another
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:  # whatever it was: a part of it is of no use, and takes room where there may be none
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def exchange(first: Path, second: Path) -> None:
    """Each gets the other's name, in one step: what is there may be folders. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = -100  # AT_FDCWD
    if libc.renameat2(here, os.fsencode(first), here, os.fsencode(second), 2):  # RENAME_EXCHANGE
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(second))
    sync_folder(second.parent)


def sync_folder(folder: Path) -> None:
    """Names given or taken in it survive a loss of power."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
