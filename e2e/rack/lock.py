"""One rack per machine, and one command at a time.

The file holds the folder of the checkout whose rack is up, so that `down` from another clone finds that rack's state,
and `up` from another clone can say whose rack is in the way.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rack.errors import RackError

_FILE = Path("/run/lock/flashboot-rack.lock")


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the machine's rack lock; RackError at once when another command holds it."""
    _FILE.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise RackError(f"another rack command runs on this machine right now ({_FILE} is locked)") from e
        yield
    finally:
        os.close(fd)


def owner() -> Path | None:
    """The folder (build/rack of a checkout) whose rack was brought up last and not taken down."""
    try:
        text = _FILE.read_text().strip()
    except FileNotFoundError:
        return None
    return Path(text) if text else None


def set_owner(folder: Path | None) -> None:
    """Write down whose rack this is; None after `down`."""
    _FILE.write_text(str(folder) if folder else "")
