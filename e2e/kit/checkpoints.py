"""The checkpoints that engines in the rack load: real Qwen3-MoE models in the Hugging Face layout, made once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kit.kubectl import run
from rack.settings import MODELS

FULL = "qwen3-moe-demo"
"""About 256 MiB: large enough that a clone on a slow link has a middle."""
TINY = "qwen3-moe-tiny"

ROOT = Path(__file__).resolve().parents[2]


def make_checkpoint(name: str) -> Path:
    """Path on this machine; on the nodes it is /srv/models/NAME, in the pods /models/NAME."""
    path = MODELS / name
    size = ["--tiny"] if name == TINY else []
    env = {"PYTHONPATH": os.pathsep.join([str(ROOT / "e2e"), str(ROOT / "agent")])}
    run([sys.executable, "-m", "demo.checkpoint", str(path), *size], seconds=600, env=env)
    return path
