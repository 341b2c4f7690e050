"""`python zstd_worker.py FILE`: compress a file by zstd, in an environment that has it. Says bytes and CPU seconds."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import zstandard  # type: ignore[import-not-found]


def main() -> None:
    data = Path(sys.argv[1]).read_bytes()
    compressor, seconds, size = zstandard.ZstdCompressor(level=3), float("inf"), 0
    for _ in range(5):
        began = time.process_time()
        size = len(compressor.compress(data))
        seconds = min(seconds, time.process_time() - began)
    print(json.dumps({"bytes": size, "seconds": seconds}))


if __name__ == "__main__":
    main()
