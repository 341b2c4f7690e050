"""`python -m bench.delta.memory DELTA BASE`: what a process grows by when it applies its first delta, in place and with
its journal. Says `peak` in bytes as JSON. A process of its own: another one has memory from before to use again."""

from __future__ import annotations

import json
import mmap
import sys
from pathlib import Path

from bench.kit.inside import Meter
from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.delta.arena import Update
from flashboot_agent.delta.file import open_delta
from flashboot_agent.delta.source import MemorySource


def main() -> None:
    path, base = map(Path, sys.argv[1:])
    memory = mmap.mmap(-1, base.stat().st_size)
    with open(base, "rb") as file:
        file.readinto(memory)
    digests = chunk_digests(memoryview(memory))
    with Meter() as meter, open_delta(path, None) as opened, memoryview(memory) as view:
        arena = MemorySource(view, opened.contents.runs, opened.contents.metadata.content)
        Update(opened, arena, path.with_name("journal")).apply(0, digests, path.with_name("reverse"))
    print(json.dumps({"peak": meter.sample["peak"]}))


if __name__ == "__main__":
    main()
