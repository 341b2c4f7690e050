"""A process that imports what every engine imports, and attaches: `python -m bench.attach.fresh [DESCRIPTOR LAYOUT]`.

Prints how long the imports took and what the attach added to them, the import of FlashBoot's own modules included. What
the agent says and hands over is not part of it: that waits beside the imports.
"""

import time

began = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

import pydantic  # noqa: E402, F401 - SGLang, vLLM and others import it, too
import torch  # noqa: E402, F401

imported = time.perf_counter()


def main() -> None:
    count = 0
    if len(sys.argv) > 1:
        count = _attached(int(sys.argv[1]), sys.argv[2])
    added = time.perf_counter() - imported
    print(json.dumps({"imports": imported - began, "added": added, "tensors": count}))


def _attached(descriptor: int, document: str) -> int:
    from flashboot_agent.engine.mapping import as_tensor, map_arena, parse_layout
    from flashboot_agent.engine.views import by_name

    with open(document, "rb") as file:
        layout = parse_layout(file.read())
    return len(by_name(layout, as_tensor(map_arena(descriptor, os.fstat(descriptor).st_size, writable=False))))


if __name__ == "__main__":
    main()
