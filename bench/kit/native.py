"""The limits: small C programs, compiled on first use into build/bench/."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from bench.kit.machine import REPO
from bench.kit.paired import RunFailed

SOURCES = REPO / "bench" / "native"
BUILT = REPO / "build" / "bench"
_FLAGS = ["-std=gnu17", "-O3", "-march=native", "-Wall", "-Wextra", "-Werror", "-pthread"]
_LIBRARIES = {"stream_limit": ["-lssl", "-lcrypto"]}


def program(name: str) -> Path:
    """The compiled program, newer than its sources. Raises RunFailed with what the compiler said."""
    source, header, target = SOURCES / f"{name}.c", SOURCES / "limit.h", BUILT / name
    newest = max(file.stat().st_mtime for file in (source, header))
    if target.exists() and target.stat().st_mtime > newest:
        return target
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise RunFailed(f"{name} can't be built: install a C compiler")
    BUILT.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    words = [compiler, *_FLAGS, str(source), "-o", str(fresh), *_LIBRARIES.get(name, [])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RunFailed(f"{name} can't be built: {done.stderr.strip()[:2000]}")
    fresh.rename(target)
    return target
