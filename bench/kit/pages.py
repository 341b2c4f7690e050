"""Which kinds of pages host arenas can have on this machine, reserving huge pages for the length of a benchmark.

Limits are measured on the same kind of memory that the arena has. What always holds: the number of reserved huge pages
is as before when `offered` ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.kit.say import say
from flashboot_agent.memory.memfd import Pages
from flashboot_agent.memory.probe import probe

_RESERVED = Path("/proc/sys/vm/nr_hugepages")


@contextmanager
def offered(arena_bytes: int, arenas: int) -> Iterator[list[Pages]]:
    """Kinds of pages that `arenas` arenas of this size can have at once, fastest first.

    As root, reserves the huge pages that are missing, if the kernel finds them."""
    facts = probe()
    before = facts.huge_pages_total
    page = facts.huge_page_bytes
    needed = arenas * -(-arena_bytes // page) if page else 0
    try:
        if page and facts.huge_pages_free < needed:
            try:
                _RESERVED.write_text(f"{before + needed - facts.huge_pages_free}\n")
            except OSError as error:
                say(f"no huge pages: {error}")
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
