"""A process that imports what every engine imports, and attaches by the public API: `… fresh [SOCKET]`.

The agent is asked before torch is imported, as docs/python-api.md advises; without SOCKET nobody is asked. Prints how
long the imports took, and what FlashBoot added: `before`, its own modules and the question; `after`, from torch being
there to all tensors by name; `thread`, the CPU time of the thread that waits, reads and maps beside the imports.
"""

import time

began = time.perf_counter()

import hashlib  # noqa: E402, F401 - torch imports these eight, whoever comes first
import json  # noqa: E402
import logging  # noqa: E402, F401
import mmap  # noqa: E402, F401
import selectors  # noqa: E402, F401
import socket  # noqa: E402, F401
import sys  # noqa: E402
import threading  # noqa: E402, F401
import zlib  # noqa: E402, F401

from pydantic import BaseModel, TypeAdapter  # noqa: E402, F401 - SGLang, vLLM and others import it, too

thread_seconds = 0.0


def main() -> None:
    sockets = sys.argv[1:]
    ready = time.perf_counter()
    begun = _begun(sockets[0]) if sockets else None
    asked = time.perf_counter()
    import torch  # noqa: F401

    imported = time.perf_counter()
    count = _attached(begun) if begun is not None else 0
    ended = time.perf_counter()
    sample = {
        "imports": (ready - began) + (imported - asked),
        "before": asked - ready,
        "after": ended - imported,
        "added": (asked - ready) + (ended - imported),
        "thread": thread_seconds,
        "tensors": count,
    }
    print(json.dumps(sample))


def _begun(path: str) -> "object":
    from bench.attach.asked import request
    from flashboot_agent.engine.begun import Begun

    class Watched(Begun):
        def _run(self) -> None:
            global thread_seconds  # noqa: PLW0603 - of the one that there is
            super()._run()
            thread_seconds = time.thread_time()

    return Watched(request(path).client())


def _attached(begun: "object") -> int:
    from flashboot_agent.api import Begun, attach

    assert isinstance(begun, Begun)
    return len(attach(begun))


if __name__ == "__main__":
    main()
