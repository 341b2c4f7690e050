"""A worker's own side of kit/worker.py, and how it measures itself. Standard library only, for any environment.

Peak memory is the high-water mark of the resident set (VmHWM, reset before each run) above what the process had before,
plus reserved huge pages, which the resident set does not count.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any


class Meter:
    """Measures the block: wall and CPU seconds, page faults, peak memory. Collect garbage before, not within."""

    def __enter__(self) -> Meter:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the high-water mark falls to what is resident now
        self._memory = _status("VmRSS") + _status("HugetlbPages")
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        seconds = time.perf_counter() - self._began
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.sample = {
            "seconds": seconds,
            "cpu": usage.ru_utime + usage.ru_stime - self._usage.ru_utime - self._usage.ru_stime,
            "faults": usage.ru_minflt - self._usage.ru_minflt,
            "peak": _status("VmHWM") + _status("HugetlbPages") - self._memory,
        }


def _status(key: str) -> int:
    """Bytes of a line of /proc/self/status; 0 when the kernel has no such line."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(key + ":")), 0)


@cache
def answers_apart() -> int:
    """Descriptor for answers; what libraries print to stdout goes to stderr from now on and tears no answer.

    Called by `serve`; call it before where a library prints while it is imported or set up."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def serve(operations: dict[str, Callable[..., dict[str, Any]]], **ready: Any) -> None:
    """Answer commands until stdin ends. An operation that raises is answered with its error and ends the process."""
    answers = os.fdopen(answers_apart(), "w", buffering=1)
    print(json.dumps({"ready": True, **ready}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = operations[command.pop("op")](**command)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result, and must be told
            traceback.print_exc()
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:400]}), file=answers)
            sys.exit(1)
        print(json.dumps(answer), file=answers)
