"""memfds: make, size, seal, re-open, read, write. The only file that knows the kernel's constants; standard library.

Kept free of pydantic and of the error tree so that the holder, which imports it, stays a tiny process.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator
from typing import Final, Literal

Pages = Literal["hugetlb", "transparent", "small"]
"""hugetlb: reserved huge pages. transparent: huge where the kernel finds them. small: the system's page size."""

MFD_NOEXEC_SEAL: Final = 0x0008
F_SEAL_SEAL: Final = 0x0001
F_SEAL_SHRINK: Final = 0x0002
F_SEAL_GROW: Final = 0x0004
F_SEAL_WRITE: Final = 0x0008
FINISHED: Final = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL
"""Nobody changes its size or its seals any more: all seals of an updatable arena; an immutable one has them, too."""
IMMUTABLE: Final = F_SEAL_WRITE | FINISHED
MADV_POPULATE_WRITE: Final = 23
STEP: Final = 64 << 20
"""Bytes that one step of `reserve` makes present: some 50 ms at 4 KiB pages, so that a poll loop stays responsive."""


def create(name: str, nbytes: int, pages: Pages = "small") -> int:
    """A memfd of `nbytes` (rounded up to whole huge pages for hugetlb), without a page yet, not executable.

    Its mode is 0600: a client of another user who is handed a read-only descriptor can't re-open it for writing.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    if pages == "hugetlb":
        flags |= os.MFD_HUGETLB
    try:
        fd = os.memfd_create(name, flags | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create(name, flags)  # kernels before 6.3
    try:
        os.fchmod(fd, 0o600)
        if pages == "hugetlb":
            nbytes = round_up(nbytes, os.fstat(fd).st_blksize)
        os.ftruncate(fd, nbytes)
    except BaseException:  # whatever it was: nobody else will close it
        os.close(fd)
        raise
    return fd


def reserve(fd: int, pages: Pages) -> Iterator[int]:
    """Make all pages present and charged to this process, a step at a time; yields how many bytes are present.

    At shmem_enabled=advise the kernel takes huge pages only through a mapping that asks for them, so that step maps
    its piece for as long as it takes. Raises OSError (ENOSPC, ENOMEM) when the system has no more.
    """
    size = os.fstat(fd).st_size
    for start in range(0, size, STEP):
        length = min(STEP, size - start)
        if pages == "transparent":
            with mmap.mmap(fd, length, offset=start) as piece:
                piece.madvise(mmap.MADV_HUGEPAGE)
                try:
                    piece.madvise(MADV_POPULATE_WRITE)
                except OSError as error:
                    if error.errno != errno.EINVAL:  # kernels before 5.14
                        raise
                    os.posix_fallocate(fd, start, length)
        else:
            os.posix_fallocate(fd, start, length)
        yield start + length


def reopen_read_only(fd: int) -> int:
    """A descriptor of the same memory that was opened for reading: mappings of it can never become writable."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)


def seals(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GET_SEALS)


def is_memory(fd: int) -> bool:
    """Whether it is a memfd (or a file of tmpfs): only those know seals, and reading them needs nobody's help."""
    try:
        seals(fd)
    except OSError:
        return False
    return True


def is_immutable(fd: int) -> bool:
    """Nobody can write it, through whatever descriptor."""
    return seals(fd) & F_SEAL_WRITE != 0


def is_finished(fd: int) -> bool:
    return seals(fd) & FINISHED == FINISHED


def fix_size(fd: int) -> None:
    """Nobody can truncate or extend it any more: a seed that shrank its arena would end its readers by SIGBUS."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)


def make_immutable(fd: int) -> None:
    """Add every seal. Raises OSError: EBUSY while a writable shared mapping of it exists anywhere, EPERM when somebody
    forbade further seals."""
    if seals(fd) & IMMUTABLE != IMMUTABLE:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, IMMUTABLE)


def finish(fd: int) -> None:
    """Add every seal but that against writing. Raises OSError: EPERM when somebody forbade further seals before."""
    if not is_finished(fd):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, FINISHED)


def sealed_copy(name: str, data: bytes) -> int:
    """A new immutable memfd with these bytes: a document that travels beside a message."""
    fd = create(name, len(data))
    try:
        write_all(fd, data, 0)
        make_immutable(fd)
    except BaseException:  # whatever it was: nobody else will close it
        os.close(fd)
        raise
    return fd


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`; one call may take less."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def read_up_to(fd: int, nbytes: int) -> bytes:
    """The first `nbytes` bytes; fewer when the file is shorter, as one that somebody truncates meanwhile may be."""
    data = bytearray()
    while len(data) < nbytes and (piece := os.pread(fd, nbytes - len(data), len(data))):
        data += piece
    return bytes(data)


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
