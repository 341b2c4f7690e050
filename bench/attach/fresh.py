"""A process that imports what every engine imports, and attaches by the public API: `… fresh [SOCKET]`.

The agent is asked before torch is imported, as docs/python-api.md advises; without SOCKET nobody is asked. Prints how
long the imports took, and what FlashBoot added: `before`, its own modules and the question; `after`, from torch being
there to all tensors by name; `main`, the CPU time of the main thread in both; `thread`, the CPU time of the thread that
asks, reads and maps beside the imports, and `locked`, as much of that as may have held Python's lock, which delays the
imports.

What torch needs as well (TORCHS) is loaded first, so that it does not count as ours because we come first. A process
without SOCKET loads none of it and fails unless torch did.
"""

import sys
import time

began = time.perf_counter()

import json  # noqa: E402

from pydantic import BaseModel, TypeAdapter  # noqa: E402, F401 - SGLang, vLLM and others import it, too

TORCHS = (
    *("array", "contextlib", "ctypes", "fcntl", "gc", "hashlib", "importlib.util", "logging", "mmap", "pathlib"),
    *("selectors", "socket", "ssl", "struct", "subprocess", "threading", "warnings", "zlib"),
)
"""Modules that torch imports."""
LIBRARIES = ("libcrypto.so.3", "libssl.so.3", "libstdc++.so.6")
"""Shared libraries that torch or one of those modules loads."""

locked_seconds = 0.0


def main() -> None:
    sockets = sys.argv[1:]
    if sockets:
        _load()
    ready, main = time.perf_counter(), -time.thread_time()
    begun = _begun(sockets[0]) if sockets else None
    asked, main = time.perf_counter(), main + time.thread_time()
    import torch  # noqa: F401

    imported, main = time.perf_counter(), main - time.thread_time()
    weights = _attached(begun) if begun is not None else {}  # held: to free them is none of attaching
    ended, main = time.perf_counter(), main + time.thread_time()
    if not sockets and (absent := _absent()):
        sys.exit(f"torch does without {absent}: they count as FlashBoot's, take them off the lists")
    sample = {
        "imports": (ready - began) + (imported - asked),
        "before": asked - ready,
        "after": ended - imported,
        "added": (asked - ready) + (ended - imported),
        "main": main,
        "thread": _thread_seconds() if sockets else 0.0,
        "locked": locked_seconds,
        "tensors": len(weights),
    }
    print(json.dumps(sample))


def _load() -> None:
    import ctypes
    import importlib

    for name in TORCHS:
        importlib.import_module(name)
    for name in LIBRARIES:
        ctypes.CDLL(name)


def _absent() -> list[str]:
    with open("/proc/self/maps") as file:
        maps = file.read()
    return [name for name in TORCHS if name not in sys.modules] + [name for name in LIBRARIES if name not in maps]


def _begun(path: str) -> "object":
    from flashboot_agent.api import Begun, Request

    class Watched(Begun):
        """What it does in one native call each, it does without Python's lock."""

        def _ask(self) -> bool:
            with _Unlocked():
                return super()._ask()

        def _make(self) -> None:
            with _Unlocked():
                super()._make()

        def _keep(self) -> None:
            global locked_seconds  # noqa: PLW0603 - of the one that there is
            locked_seconds += time.thread_time()
            super()._keep()

    return Watched(Request(model="bench", revision="1", socket=path))


class _Unlocked:
    def __enter__(self) -> None:
        global locked_seconds  # noqa: PLW0603
        locked_seconds += time.thread_time()

    def __exit__(self, *_: object) -> None:
        global locked_seconds  # noqa: PLW0603
        locked_seconds -= time.thread_time()


def _thread_seconds() -> float:
    import threading

    thread = next(each for each in threading.enumerate() if each.name == "flashboot-begun")
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _attached(begun: "object") -> "dict[str, object]":
    from flashboot_agent.api import Begun, attach

    assert isinstance(begun, Begun)
    return attach(begun)


if __name__ == "__main__":
    main()
