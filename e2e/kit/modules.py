"""Run a module of this repository (`python -m rack`, `python -m demo.checkpoint`) in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kit.kubectl import run

ROOT = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """Where a child finds the modules, whatever the caller's own path looks like."""
    ours = [str(ROOT / folder) for folder in ("e2e", "agent", "operator")]
    return {"PYTHONPATH": os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])}


def run_module(*arguments: str, seconds: float) -> str:
    """Its standard output. Raises CommandFailed."""
    return run([sys.executable, "-m", *arguments], seconds=seconds, env=environment())
