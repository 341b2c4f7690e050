"""Which kinds of pages host arenas can have on this machine; as root, what it takes for the length of a benchmark.

Limits are measured on the same kind of memory that the arena has. What always holds: the number of reserved huge pages
and shmem_enabled are as before when `offered` ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.kit.say import say
from flashboot_agent.memory.memfd import Pages
from flashboot_agent.memory.probe import SHMEM_ENABLED, probe

_RESERVED = Path("/proc/sys/vm/nr_hugepages")
_COMPACT = Path("/proc/sys/vm/compact_memory")
_TRANSPARENT = Path("/") / SHMEM_ENABLED


@contextmanager
def offered(arena_bytes: int, arenas: int) -> Iterator[list[Pages]]:
    """Kinds of pages that `arenas` arenas of this size can have at once, fastest first.

    As root, reserves the huge pages that are missing, if the kernel finds them, and allows transparent ones."""
    facts = probe()
    before = facts.huge_pages_total
    page = facts.huge_page_bytes
    needed = arenas * -(-arena_bytes // page) if page else 0
    try:
        if page and facts.huge_pages_free < needed:
            wanted = str(before + needed - facts.huge_pages_free)
            _try(_RESERVED, wanted)
            if probe().huge_pages_free < needed:  # memory may be in pieces
                _try(_COMPACT, "1")
                _try(_RESERVED, wanted)
        if facts.shmem_enabled in ("never", "deny"):
            _try(_TRANSPARENT, "advise")
        kinds: list[Pages] = []
        now = probe()
        if page and now.huge_pages_free >= needed:
            kinds.append("hugetlb")
        else:
            say(f"no reserved huge pages: {now.huge_pages_free} free, {needed} needed")
        if now.shmem_enabled in ("always", "within_size", "advise", "force"):
            kinds.append("transparent")
        yield [*kinds, "small"]
    finally:
        if probe().huge_pages_total != before:
            _RESERVED.write_text(f"{before}\n")
        if probe().shmem_enabled != facts.shmem_enabled:
            _TRANSPARENT.write_text(f"{facts.shmem_enabled}\n")


def _try(setting: Path, value: str) -> None:
    try:
        setting.write_text(f"{value}\n")
    except OSError as error:
        say(f"{setting} stays as it is: {error}")
