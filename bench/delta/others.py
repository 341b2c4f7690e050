"""What others would send for the same pair: zstd with the base as its dictionary (`zstd --patch-from`), and a list of
index and value, as it is and through zstd. By zstd_worker.py in an environment that has zstandard."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from bench.delta.pairs import Pair
from bench.kit.machine import REPO
from bench.kit.paired import RunFailed

_SECONDS = 900


class Zstd:
    def __init__(self, python: Path, logs: Path) -> None:
        self._python, self._logs = python, logs

    def measure(self, pair: Pair) -> dict[str, dict[str, float]]:
        """Name → bytes, and seconds of CPU to encode. Raises RunFailed."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "base").write_bytes(pair.base)
            Path(folder, "new").write_bytes(pair.new)
            words = [str(self._python), str(REPO / "bench" / "delta" / "zstd_worker.py"), folder]
            done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if done.returncode:
            raise RunFailed(f"zstd: {done.stderr.strip()[-500:]}")
        found: dict[str, dict[str, float]] = json.loads(done.stdout)
        return found
