"""The agent, which ends by SIGKILL at a step of an update: `python -m tests.component.dying_agent STEP [TORN]`.

STEP: a step of delta/arena.py, with `:N` for its N-th time; or one of the record: `barred` (it says between which
versions, nothing is written), `table` (the new digests are in the record, not what they belong to); or `told`: it is
told to end by SIGTERM before the second window, and goes on when that has arrived. TORN: a file with the result, of
which half the window that was just kept is written before the end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashboot_agent.delta.arena import Update
from flashboot_agent.node.__main__ import main
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.record import RecordFile


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _until_it_raises(point: Callable[[str], None]) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        point("located")
        time.sleep(0.01)  # between two looks


def _install(step: str, torn: bytes) -> None:
    name, _, number = step.partition(":")
    seen: Counter[str] = Counter()
    init, begin, save = Update.__init__, Arena.begin_update, RecordFile.save_documents

    def hooked_init(self: Update, *args: Any, **facts: Any) -> None:
        init(self, *args, **facts)
        point = self._point

        def told(reached: str) -> None:
            point(reached)
            seen[reached] += 1
            if name == "told" and reached == "located" and seen[reached] == 2:
                os.kill(os.getpid(), signal.SIGTERM)
                _until_it_raises(point)
            if reached == name and seen[reached] == int(number or 1):
                if torn:
                    window = self._windows[seen[reached] - 1]
                    half = (window.offset + window.end) // 2
                    self._memory[window.offset : half] = torn[window.offset : half]
                _die()

        self._point = told

    def hooked_begin(self: Arena, *args: Any) -> None:
        begin(self, *args)
        if name == "barred":
            _die()

    def hooked_save(self: RecordFile, layout: bytes, digests: bytes) -> None:
        save(self, layout, digests)
        if name == "table":
            _die()

    Update.__init__ = hooked_init  # type: ignore[method-assign]
    Arena.begin_update = hooked_begin  # type: ignore[assignment,method-assign]
    RecordFile.save_documents = hooked_save  # type: ignore[method-assign]


if __name__ == "__main__":
    _install(sys.argv[1], Path(sys.argv[2]).read_bytes() if len(sys.argv) > 2 else b"")
    sys.argv[1:] = []
    main()
