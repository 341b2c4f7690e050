"""The installed torch, as far as its files tell: importing it takes seconds, and the agent can be asked before."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path


@cache
def torch_folder() -> Path:
    """Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torch is not installed; FlashBoot's Python API hands out its tensors", name="torch")
    return Path(spec.origin).parent


def torch_libraries() -> tuple[Path, Path]:
    """The one with torch's C functions, and the one that makes Python's objects."""
    folder = torch_folder() / "lib"
    return folder / "libtorch_cpu.so", folder / "libtorch_python.so"


@cache
def torch_version() -> str:
    """`torch.__version__`: torch itself takes it from this file."""
    path = torch_folder() / "version.py"
    spec = importlib.util.spec_from_file_location("flashboot_agent_torch_version", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.__version__)
