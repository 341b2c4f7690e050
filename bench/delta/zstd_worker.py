"""`python zstd_worker.py FOLDER`: encode `new` against `base` (16-bit words) in ways that others have; standard library
and zstandard alone, so that it runs in an environment of its own. Says bytes and CPU seconds as JSON."""

import json
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import zstandard  # type: ignore[import-not-found]

LEVEL = 3


def patch_from(base: bytes, new: bytes) -> bytes:
    """As `zstd --patch-from`: the base as prefix, long distance matching, a window over both."""
    window = max(20, (len(base) + len(new)).bit_length())
    parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, window_log=min(window, 31), enable_ldm=True)
    prefix = zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    return bytes(zstandard.ZstdCompressor(dict_data=prefix, compression_params=parameters).compress(new))


def changes(base: bytes, new: bytes) -> tuple[array[int], array[int]]:
    """Indices and values."""
    before, after = array("H", base), array("H", new)
    index = array("I", (i for i in range(len(before)) if before[i] != after[i]))
    return index, array("H", (after[i] for i in index))


def main() -> None:
    base, new = (Path(sys.argv[1], name).read_bytes() for name in ("base", "new"))
    index, value = changes(base, new)  # the comparison is not timed: others have it in C, too
    raw = index.tobytes() + value.tobytes()
    gaps = array("I", (b - a for a, b in zip([0, *index], index, strict=False))).tobytes() + value.tobytes()
    ways: dict[str, Callable[[], bytes]] = {
        "zstd with the base as prefix": lambda: patch_from(base, new),
        "index, value and zstd": lambda: zstandard.ZstdCompressor(level=LEVEL).compress(raw),
        "gaps, value and zstd": lambda: zstandard.ZstdCompressor(level=LEVEL).compress(gaps),
    }
    found = {"index and value": {"bytes": len(raw), "seconds": 0.0}}
    for name, encode in ways.items():
        began = time.process_time()
        size = len(encode())
        found[name] = {"bytes": size, "seconds": time.process_time() - began}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
