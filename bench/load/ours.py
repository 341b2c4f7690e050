"""FlashLoad into an arena that a real holder made: `ours FOLDER HOLDER PAGES MODE plain|digests`.

MODE fresh: the time begins before the holder is asked for memory. resident: the arena of the first run is filled again.
opened: the same, from a checkpoint whose headers were checked in the first run.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from bench.kit import inside
from flashboot_agent.holder.client import HolderClient
from flashboot_agent.load.load import OpenCheckpoint, open_checkpoint
from flashboot_agent.load.plan import Plan
from flashboot_agent.memory.host import HostMapping, HostRegion
from flashboot_agent.memory.memfd import Pages

THREADS = min(len(os.sched_getaffinity(0)), 8)


class Loader:
    """One contestant; `close` gives its arena back."""

    def __init__(self, folder: Path, holder: HolderClient, pages: Pages, *, mode: str, digests: bool) -> None:
        self._folder = folder
        self._holder = holder
        self._pages: Pages = pages
        self._mode = mode
        self._open = ExitStack()
        self._checkpoint: OpenCheckpoint | None = None
        self._digests = digests
        self._arena = f"arena-{uuid.uuid4().hex}"
        self._region: HostRegion | None = None
        self._mapping: HostMapping | None = None

    def run(self, check: bool = False) -> dict[str, Any]:
        with inside.Meter() as meter:
            began = time.perf_counter()
            checkpoint = self._opened()
            opened = time.perf_counter()
            memory = self._memory(checkpoint.plan.nbytes)
            allocated = time.perf_counter()
            checkpoint.read(memory, threads=THREADS, digests=self._digests)
            read = time.perf_counter() - allocated
        if check:
            _require_equal(self._folder, checkpoint.plan, memory)
        memory.release()
        if self._mode != "opened":
            self._checkpoint = None
            self._open.close()
        if self._mode == "fresh":
            self.close()
        phases = {"open": opened - began, "allocate": allocated - opened, "read": read}
        return {**meter.sample, **phases, "bytes": checkpoint.plan.nbytes}

    def _opened(self) -> OpenCheckpoint:
        if self._checkpoint is None:
            self._checkpoint = self._open.enter_context(open_checkpoint(self._folder))
        return self._checkpoint

    def _memory(self, nbytes: int) -> memoryview:
        if self._mapping is None:
            self._region = HostRegion(self._arena, self._holder.create(self._arena, nbytes, self._pages))
            self._mapping = HostMapping(self._region.fd, nbytes, writable=True)
        return self._mapping.view[:nbytes]

    def close(self) -> None:
        if self._mapping is not None and self._region is not None:
            self._mapping.close()
            self._region.close()
            self._holder.drop(self._arena)
            self._mapping = self._region = None


def _require_equal(folder: Path, plan: Plan, memory: memoryview) -> None:
    """Raises ValueError for a tensor that is not, byte for byte, what the file holds."""
    whole = np.frombuffer(memory, np.uint8)
    files = [np.memmap(file, np.uint8, "r") for file in plan.files]
    for t in plan.tensors:
        expected = files[t.file][t.file_offset : t.file_offset + t.nbytes]
        if not np.array_equal(whole[t.offset : t.offset + t.nbytes], expected):
            raise ValueError(f"{t.name} differs from the checkpoint in {folder}")


def main() -> None:
    folder, holder, pages, mode, digests = sys.argv[1:]
    kind: Pages = "hugetlb" if pages == "hugetlb" else "transparent" if pages == "transparent" else "small"
    loader = Loader(Path(folder), HolderClient(holder), kind, mode=mode, digests=digests == "digests")
    inside.serve({"run": loader.run})
    loader.close()


if __name__ == "__main__":
    main()
