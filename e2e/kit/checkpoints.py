"""The checkpoints that engines in the rack load: real Qwen3-MoE models in the Hugging Face layout, made once."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from kit.kubectl import run
from kit.modules import ROOT, environment, run_module
from rack.settings import MODELS

FULL = "qwen3-moe-demo"
"""About 256 MiB: large enough that a clone on a slow link has a middle."""
TINY = "qwen3-moe-tiny"

SIZES = {FULL: "demo", TINY: "tiny"}
MAKERS = ("checkpoint.py", "recipes.py", "architectures.py", "draws.py", "tokenizer.py")


def ensure(name: str) -> bool:
    """Whether it had to be made. On this machine it is MODELS/name, on the nodes /srv/models/name.

    A note beside it tells by which code it was made, so that a change of the maker makes it anew.
    """
    path, note = MODELS / name, MODELS / f".{name}.made-by"
    stamp = hashlib.sha256()
    for maker in MAKERS:
        stamp.update((ROOT / "e2e" / "demo" / maker).read_bytes())
    if path.is_dir() and note.is_file() and note.read_text() == stamp.hexdigest():
        return False
    shutil.rmtree(path, ignore_errors=True)
    engine = run_module("setup_env", "path", "engine", seconds=3600).strip()  # the maker needs its tokenizers
    run([engine, "-m", "demo.checkpoint", str(path), "--size", SIZES[name]], seconds=600, env=environment())
    note.write_text(stamp.hexdigest())
    return True


def path_of(name: str) -> Path:
    return MODELS / name
