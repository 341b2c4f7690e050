"""What others would send for the same pair: `zstd --patch-from`, and lists of index and value, as they are and through
zstd. The comparison that finds the lists is numpy's and counts; digests only ours has."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.delta.pairs import Pair
from bench.kit.machine import REPO
from bench.kit.paired import RunFailed

_SECONDS = 300
_ROUNDS = 5


class Others:
    def __init__(self, python: Path) -> None:
        """`python`: has zstandard."""
        self._python = python

    def measure(self, pair: Pair) -> dict[str, dict[str, float]]:
        """Name → bytes, and seconds of CPU to encode. Raises RunFailed."""
        index, value, seconds = _listed(pair)
        raw = index.tobytes() + value.tobytes()
        gaps = np.diff(index, prepend=0).astype(np.uint32).tobytes() + value.tobytes()
        found = {"index and value": {"bytes": float(len(raw)), "seconds": seconds}}
        with tempfile.TemporaryDirectory() as folder:
            for name, data in {"index, value and zstd": raw, "gaps, value and zstd": gaps}.items():
                Path(folder, "data").write_bytes(data)
                packed = self._zstandard(Path(folder, "data"))
                found[name] = {"bytes": packed["bytes"], "seconds": seconds + packed["seconds"]}
            found["zstd --patch-from"] = _patch_from(pair, Path(folder))
        return found

    def _zstandard(self, data: Path) -> dict[str, float]:
        words = [str(self._python), str(REPO / "bench" / "delta" / "zstd_worker.py"), str(data)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise RunFailed(f"zstd: {done.stderr.strip()[-500:]}")
        packed: dict[str, float] = json.loads(done.stdout)
        return packed


def _listed(pair: Pair) -> tuple[np.ndarray, np.ndarray, float]:
    base, new = pair.words()
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.thread_time()
        index = np.flatnonzero(base != new).astype(np.uint32)
        value = new[index]
        best = min(best, time.thread_time() - began)
    return index, value, best


def _patch_from(pair: Pair, folder: Path) -> dict[str, float]:
    """Level 3, by the program: the Python package has no prefixes."""
    program = shutil.which("zstd")
    if program is None:
        raise RunFailed("there is no program zstd: install it")
    base, new, out = (folder / name for name in ("base", "new", "out"))
    base.write_bytes(pair.base)
    new.write_bytes(pair.new)
    words = [program, "-3", "--single-thread", "--long=27", f"--patch-from={base}", str(new), "-o", str(out), "-fq"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, timeout=_SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"bytes": float(out.stat().st_size), "seconds": after.ru_utime - before.ru_utime}
