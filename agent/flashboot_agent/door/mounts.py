"""Read-only bind mounts, made the way that survives propagation, and the list of what is mounted.

The flags are set on the detached copy of the mount before it is attached anywhere: kubelet's namespace gets the mount
by propagation, and a remount in ours afterwards would not propagate. The calls are made by number: not every libc
wraps them.
"""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import dataclass
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

# The same on all architectures: they came after the tables were unified (include/uapi/asm-generic/unistd.h).
_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_MOUNT_SETATTR: Final = 442

_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_OPEN_TREE_CLONE: Final = 1
_MOVE_MOUNT_F_EMPTY_PATH: Final = 4
_READ_ONLY_NOSUID_NODEV_NOEXEC: Final = 0x1 | 0x2 | 0x4 | 0x8
_MNT_DETACH: Final = 2


class _MountAttributes(ctypes.Structure):
    """struct mount_attr (linux/mount.h)."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)} (kernel {platform.release()})")
    return result


def bind_readonly(source: str, target: str) -> None:
    """Mount the folder `source` at the folder `target`: read-only, no set-uid, no devices, nothing to execute.

    Raises OSError that names the call; ENOSYS means a kernel before 5.12."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
    tree = _checked(_LIBC.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags), f"open_tree({source})")
    try:
        attributes = _MountAttributes(attr_set=_READ_ONLY_NOSUID_NODEV_NOEXEC)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        _checked(
            _LIBC.syscall(_MOUNT_SETATTR, tree, b"", ctypes.c_uint(_AT_EMPTY_PATH), ctypes.byref(attributes), size),
            f"mount_setattr({source})",
        )
        _checked(
            _LIBC.syscall(
                _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
            ),
            f"move_mount({target})",
        )
    finally:
        os.close(tree)


def detach(target: str) -> None:
    """Take the topmost mount at `target` away at once; whoever still uses it keeps it until they let go."""
    _checked(_LIBC.umount2(os.fsencode(target), ctypes.c_int(_MNT_DETACH)), f"umount2({target})")


@dataclass(frozen=True)
class Mount:
    root: str
    """The folder of its file system that is shown."""
    point: str
    options: frozenset[str]


def mounts() -> list[Mount]:
    """What is mounted in our namespace, in the order of mounting."""
    # Kernel text: bytes that are no UTF-8 must not keep us from reading the other lines.
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [parse_mountinfo(line) for line in file]


def parse_mountinfo(line: str) -> Mount:
    """One line of /proc/self/mountinfo (proc_pid_mountinfo(5))."""
    fields = line.split(" ")
    return Mount(_unescape(fields[3]), _unescape(fields[4]), frozenset(fields[5].split(",")))


def _unescape(field: str) -> str:
    """Space, tab, newline and backslash come as octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field
