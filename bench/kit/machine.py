"""The machine that a figure was measured on, in words that another person can compare."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from flashboot_agent.memory.probe import probe

REPO = Path(__file__).resolve().parents[2]


def commit() -> str:
    """The checkout's commit, with a mark when files of it were changed."""
    try:
        said = subprocess.run(
            ["git", "-C", str(REPO), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return said.stdout.strip()


def describe() -> dict[str, Any]:
    facts = probe()
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "commit": commit(),
        "CPU": f"{len(os.sched_getaffinity(0))} cores, {cpu.group(1) if cpu else platform.machine()}",
        "memory": f"{int(memory.group(1)) >> 20 if memory else 0} GiB",
        "kernel": platform.release(),
        "shmem_enabled": facts.shmem_enabled,
        "reserved huge pages": f"{facts.huge_pages_total} of {facts.huge_page_bytes >> 10} KiB",
        "load average at start": f"{os.getloadavg()[0]:.2f}",
    }
