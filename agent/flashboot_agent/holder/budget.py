"""How many bytes the holder may give: what it was told, else what its own memory cgroup leaves.

fallocate beyond the cgroup's limit is answered by the kernel with SIGKILL, not with an error; so the limit is looked at
first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

OVERHEAD: Final = 64 << 20
"""Bytes kept for the holder itself, out of a cgroup's limit."""

LIMITS: Final = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")


def default_budget(root: Path = Path("/")) -> int:
    """The cgroup's limit less the overhead, or three quarters of the machine's memory where there is no limit."""
    total = meminfo(root, "MemTotal")
    limit = cgroup_limit(root)
    if limit is not None and limit < total:
        return max(0, limit - OVERHEAD)
    return total // 4 * 3


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """The memory limit of the cgroup that this process sees as its root; None where there is none."""
    for name in LIMITS:
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def available(root: Path = Path("/")) -> int:
    """Bytes that the machine could still give without swapping."""
    return meminfo(root, "MemAvailable")


def meminfo(root: Path, key: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {key}")
