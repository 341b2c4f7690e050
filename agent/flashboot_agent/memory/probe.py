"""What memory this node really gives, read from /sys and /proc, and which pages a new arena gets, with the reason.

Never assumed: pages may be 64 KiB (Grace), and at the usual shmem_enabled=never an madvise succeeds and does nothing.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from pathlib import Path

from flashboot_agent.memory.memfd import Pages
from flashboot_agent.wire.observed import HostMemory

SHMEM_ENABLED = "sys/kernel/mm/transparent_hugepage/shmem_enabled"


@dataclass(frozen=True)
class HostFacts:
    """Read at one moment; huge pages come and go."""

    page_bytes: int
    shmem_enabled: str
    huge_pages_total: int
    huge_pages_free: int
    huge_page_bytes: int


@dataclass(frozen=True)
class PageChoice:
    pages: Pages
    why: str


def probe(root: Path = Path("/")) -> HostFacts:
    """Read the facts; what can't be read is said in words or counts as none."""
    try:
        shmem = selected_word((root / SHMEM_ENABLED).read_text())
    except OSError as error:
        shmem = f"unreadable: {error.strerror}"
    try:
        meminfo = (root / "proc/meminfo").read_text()
    except OSError:
        meminfo = ""
    return HostFacts(
        page_bytes=mmap.PAGESIZE,
        shmem_enabled=shmem,
        huge_pages_total=_meminfo(meminfo, "HugePages_Total"),
        huge_pages_free=max(0, _meminfo(meminfo, "HugePages_Free") - _meminfo(meminfo, "HugePages_Rsvd")),
        huge_page_bytes=_meminfo(meminfo, "Hugepagesize") * 1024,
    )


def selected_word(text: str) -> str:
    """The bracketed word of a sysfs choice, e.g. `always [never]` → `never`."""
    found = re.search(r"\[([^\]]+)\]", text)
    return found.group(1) if found else text.strip() or "empty"


def choose(facts: HostFacts, nbytes: int) -> PageChoice:
    """Pages for an arena of `nbytes`: reserved huge pages, else transparent ones where the node allows, else small."""
    small = f"{_size(facts.page_bytes)} pages"
    huge = _size(facts.huge_page_bytes)
    if facts.huge_page_bytes and facts.huge_pages_free * facts.huge_page_bytes >= max(nbytes, 1):
        return PageChoice("hugetlb", f"{huge} huge pages: {facts.huge_pages_free} are free")
    reserved = (
        f"only {facts.huge_pages_free} of {facts.huge_pages_total} reserved huge pages are free"
        if facts.huge_pages_total
        else "no huge pages are reserved"
    )
    if facts.shmem_enabled in ("always", "within_size", "advise", "force"):
        return PageChoice("transparent", f"transparent huge pages: shmem_enabled is {facts.shmem_enabled}, {reserved}")
    return PageChoice("small", f"{small}: shmem_enabled is {facts.shmem_enabled} and {reserved}")


def report(facts: HostFacts, budget_bytes: int, used_bytes: int) -> HostMemory:
    """The facts as the operator sees them. What new arenas use is told for the smallest possible arena."""
    return HostMemory(
        page_bytes=facts.page_bytes,
        shmem_enabled=facts.shmem_enabled,
        huge_pages_total=facts.huge_pages_total,
        huge_pages_free=facts.huge_pages_free,
        huge_page_bytes=facts.huge_page_bytes,
        arena_pages=choose(facts, 1).why,
        budget_bytes=budget_bytes,
        used_bytes=used_bytes,
    )


def _meminfo(text: str, key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def _size(nbytes: int) -> str:
    if nbytes and nbytes % (1 << 20) == 0:
        return f"{nbytes >> 20} MiB"
    return f"{nbytes >> 10} KiB"
