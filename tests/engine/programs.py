"""What programs of the public API have in common in tests: tensors of every kind, a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashboot_agent.engine import client as clients

AGENT = Path(clients.__file__).parents[2]


def run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """`code` in a process of its own, which has FlashBoot on its path and the socket as its argument."""
    command = [sys.executable, "-c", code, str(path)]
    env = {"PYTHONPATH": str(AGENT)}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


def made() -> dict[str, Any]:
    """Every kind of view that a checkpoint may bring."""
    table = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    return {
        "table": table,
        "layer.0.weight": table.t(),  # a view of the same storage
        "layer.0.half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "layer.0.scale": torch.tensor(0.5),
        "layer.0.empty": torch.empty(0, 3),
        "tied": table,
        ".odd..name.": torch.tensor([True, False]),
        "trained": torch.nn.Parameter(torch.ones(3)),
    }


def all_in_place() -> dict[str, Any]:
    """Without the one that has no bytes: an arena of such is read without Python."""
    return {name: tensor for name, tensor in made().items() if tensor.numel()}


def same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    def one(x: Any, y: Any) -> bool:
        return (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride()) and torch.equal(x, y)

    return a.keys() == b.keys() and all(one(a[name], b[name]) for name in a)


def never() -> dict[str, Any]:
    raise AssertionError("nothing must be loaded")
