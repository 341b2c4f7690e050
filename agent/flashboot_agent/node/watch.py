"""inotify on a folder that may not exist yet, through libc: wakes the loop when something is renamed in or removed.

Only a hint: whoever is woken lists the folder, and lists it every tick anyway.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

IN_NONBLOCK_CLOEXEC: Final = 0o2004000
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_MOVED: Final = 0x40 | 0x80
IN_DELETE_SELF: Final = 0x400
MASK: Final = IN_CREATE | IN_DELETE | IN_MOVED | IN_DELETE_SELF


class FolderWatch:
    """Call `watch` again and again: it is cheap, and arms anew after the folder was made or replaced."""

    def __init__(self, folders: list[Path], wake: Callable[[], None]) -> None:
        self._folders = folders
        self._wake = wake
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(IN_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1: is fs.inotify.max_user_instances used up?")
        asyncio.get_running_loop().add_reader(self._fd, self._readable)

    def watch(self) -> None:
        for folder in self._folders:  # adding a watch that exists changes nothing
            self._libc.inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(MASK))

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _readable(self) -> None:
        try:
            while os.read(self._fd, 65536):
                pass
        except BlockingIOError:
            pass
        self._wake()
