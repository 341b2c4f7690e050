"""Fixtures of the engine's tests. They need torch and SGLang; where these are not, nothing here is collected.

`make test` runs them with the engine's own Python (pytest.ini beside this file says how).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.runtime import ARCHITECTURES

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of each architecture."""
    from demo.checkpoint import make_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints")
    for arch in ARCHITECTURES:
        make_checkpoint(folder / arch, arch=arch, size="tiny")
    return {arch: folder / arch for arch in ARCHITECTURES}


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A short path for a socket (107 bytes at most)."""
    folder = Path(tempfile.mkdtemp(prefix="fb-"))
    yield folder / "agent.sock"
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def hooked() -> None:
    """SGLang's scheduler imported and our hooks in, as in a process that loads models."""
    import sglang.srt.managers.scheduler  # noqa: F401

    from flashboot_agent.engine import plugin

    plugin.install(plugin.scheduler_hooks())
    plugin.verify()
