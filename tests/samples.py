"""Messages that several suites need and whose content none of them looks at."""

from __future__ import annotations

from flashboot_agent.wire.observed import HostMemory

MEMORY = HostMemory(
    page_bytes=4096,
    shmem_enabled="never",
    huge_pages_total=0,
    huge_pages_free=0,
    huge_page_bytes=0,
    arena_pages="4 KiB",
    budget_bytes=1 << 30,
    used_bytes=0,
)
