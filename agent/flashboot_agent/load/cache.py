"""Page cache or O_DIRECT? Decided from the facts, and the reason is told.

What lies in the page cache is read from there: that is a copy at the speed of memory. What does not is read past it,
straight to where it goes, so that a load neither copies twice nor drives out what other programs need. Where a file
system has no O_DIRECT, the page cache is used whatever lies in it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

PROBES: Final = 64
"""Pages that are looked at, over all files."""
BLOCK: Final = 4096
"""What O_DIRECT wants addresses, offsets and lengths to be multiples of (csrc/bulk_read.cpp)."""


@dataclass(frozen=True)
class Choice:
    direct: bool
    why: str
    """For people: what was found."""


@contextmanager
def readers(files: Sequence[int], *, direct: bool | None = None) -> Iterator[tuple[list[int], Choice]]:
    """Descriptors to read the open `files` with, closed at the end, and the choice. `direct` None: by the facts.

    Raises OSError."""
    cached = resident(files) if direct is None else 0.0
    if direct is False:
        yield list(files), Choice(False, "page cache, as asked")
        return
    if direct is None and (cached is None or cached >= 0.5):
        share = "unknown" if cached is None else f"{cached * 100:.0f} %"
        yield list(files), Choice(False, f"page cache: {share} of the probed pages are in it")
        return
    with ExitStack() as stack:
        opened: list[int] = []
        for fd in files:
            try:
                # The same file, whatever its name leads to by now.
                again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
                stack.callback(os.close, again)
                _try_block(again)
            except OSError as error:
                yield list(files), Choice(False, f"page cache: this file system refuses O_DIRECT ({error.strerror})")
                return
            opened.append(again)
        why = "as asked" if direct else f"{(cached or 0) * 100:.0f} % of the probed pages are in the page cache"
        yield opened, Choice(True, f"O_DIRECT: {why}")


def resident(files: Sequence[int]) -> float | None:
    """Which share of some pages, spread over the files, is in the page cache; None when the kernel doesn't tell.

    Reads a byte of each without waiting (RWF_NOWAIT): that says nothing about other users' pages, as mincore would."""
    sizes = [os.fstat(fd).st_size for fd in files]
    total = sum(sizes)
    if total == 0:
        return 1.0
    there = looked = 0
    byte = bytearray(1)
    for fd, size in zip(files, sizes, strict=True):
        count = min(-(-size // BLOCK), max(1, PROBES * size // total))
        for number in range(count if size else 0):
            try:
                os.preadv(fd, [byte], number * size // count, os.RWF_NOWAIT)
                there += 1
            except BlockingIOError:
                pass
            except OSError:  # EOPNOTSUPP: a file system that can only wait
                return None
            looked += 1
    return there / looked


def _try_block(fd: int) -> None:
    """Some file systems take the flag and refuse the read, or want larger blocks."""
    with mmap.mmap(-1, BLOCK) as block:
        os.preadv(fd, [block], 0)
