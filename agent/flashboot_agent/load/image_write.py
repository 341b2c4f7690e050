"""Write an arena image in the background: throttled, without filling the page cache, and whole or not at all.

    temporary name → documents → data → fsync → header → fsync → final name → fsync of the folder

A writer that is killed anywhere leaves a temporary file, or a file without a header: see `clean` and `open_image`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from flashboot_agent.files import sync_folder
from flashboot_agent.load.image import DOCUMENTS, Manifest, data_offset, head
from flashboot_agent.memory.memfd import write_all

STEP: Final = 8 << 20
"""Bytes between two looks at the clock; each step is on the disk, and out of the page cache, before the next."""
TEMPORARY: Final = ".writing"


class Stopped(Exception):
    """The writer was asked to stop; nothing is left of the file."""


def write_image(
    path: Path,
    manifest: Manifest,
    layout: bytes,
    digests: bytes,
    data: memoryview,
    *,
    bytes_per_second: int,
    stop: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Write the image of a sealed arena to `path`, replacing what was there. `bytes_per_second` 0: no throttle.

    Returns the size of the file. Raises OSError (ENOSPC before any data is written), Stopped."""
    with new_image(path, manifest, layout, digests, data.nbytes) as (fd, offset):
        began = clock()
        for start in range(0, data.nbytes, STEP):
            with data[start : start + STEP] as step:
                write_all(fd, step, offset + start)
            os.fdatasync(fd)  # pages that wait to be written can't be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            due = began + (start + STEP) / bytes_per_second if bytes_per_second else 0.0
            if stop.wait(max(0.0, due - clock())):
                raise Stopped(f"{path.name} at {start + STEP} of {data.nbytes} bytes")
    return offset + data.nbytes


@contextmanager
def new_image(path: Path, manifest: Manifest, layout: bytes, digests: bytes, nbytes: int) -> Iterator[tuple[int, int]]:
    """Descriptor, and offset of the data that the body writes; then the image is at `path`, replacing what was there.

    Until then it has a temporary name, and it is removed when the body raises. Raises OSError
    (ENOSPC before any data is written)."""
    temporary = path.with_name(path.name + TEMPORARY)
    header, documents = head(manifest, layout, digests)
    offset = data_offset(len(documents))
    with suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, offset + nbytes)
        write_all(fd, documents, DOCUMENTS)
        yield fd, offset
        os.fsync(fd)
        write_all(fd, header, 0)
        os.fsync(fd)
        temporary.rename(path)
    except BaseException:  # whatever it was: half an image is of no use
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(fd)
    sync_folder(path.parent)


def clean(folder: Path) -> list[str]:
    """Remove what killed writers left; their names. For the only writer of a folder, at its start."""
    left = [entry for entry in folder.iterdir() if entry.name.endswith(TEMPORARY)]
    for entry in left:
        entry.unlink()
    return [entry.name for entry in left]
