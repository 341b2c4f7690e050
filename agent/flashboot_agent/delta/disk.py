"""A full disk as an error of its own: who writes waits for room then, and nothing else is wrong."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flashboot_agent.core.errors import DiskFull

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def room_in(folder: Path, what: str = "") -> Iterator[None]:
    """Raises DiskFull for what the system says about room; other errors pass. `what` would be written, for people."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            began = f"{what}: " if what else ""
            raise DiskFull(f"{began}{folder}: {error.strerror}; make room there and try again") from error
        raise
