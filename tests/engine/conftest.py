"""Fixtures of the engine's tests. They need torch and SGLang; where these are not, nothing here is collected.

`make test` runs them with the engine's own Python (pytest.ini beside this file says how).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.runtime import CASES, QUANTISED

if importlib.util.find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("SGLANG_OPT_USE_TILELANG_MHC_PRE", "0")  # else DeepSeek-V4's load ends with kernels of a GPU
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny checkpoint of each case."""
    from demo.checkpoint import make_checkpoint

    folder = tmp_path_factory.mktemp("checkpoints")
    every = CASES | QUANTISED
    for name, case in every.items():
        make_checkpoint(folder / name, arch=case.arch, size="tiny", tied=case.tied, fp8=case.fp8)
    return {name: folder / name for name in every}


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


@pytest.fixture(scope="session")
def runner(checkpoints: dict[str, Path], hooked: None) -> Any:
    """SGLang's runner, for greedy tokens (tokens.py)."""
    from tests.engine import tokens

    return tokens.runner_for(checkpoints["qwen3_moe"])


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For programs of the public API: short pauses, and no conversation that outlives its test."""
    from flashboot_agent.api import Begun, Request
    from flashboot_agent.engine import client as clients
    from flashboot_agent.engine import conversation
    from flashboot_agent.engine import seed as seeds

    monkeypatch.setattr(conversation, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(seeds, "RETRY_SECONDS", 0.02)
    open_ones: list[Begun | clients.AgentClient] = []
    client, init = Request.client, Begun.__init__

    def watched_client(request: Request) -> clients.AgentClient:
        open_ones.append(client(request))
        return open_ones[-1]  # type: ignore[return-value]

    def watched_init(begun: Begun, request: Request) -> None:
        open_ones.append(begun)
        init(begun, request)

    monkeypatch.setattr(Request, "client", watched_client)
    monkeypatch.setattr(Begun, "__init__", watched_init)
    yield
    for each in reversed(open_ones):
        each.close()


@pytest.fixture
def peer(socket_path: Path) -> Iterator[Any]:
    from tests.engine import peer as peers

    peer = peers.Peer(socket_path)
    yield peer
    peer.close()


@pytest.fixture
def ask(socket_path: Path) -> Callable[..., Any]:
    from flashboot_agent.api import Request

    def ask(**facts: Any) -> Request:
        return Request(**{"model": "m", "revision": "1", "socket": str(socket_path), **facts})

    return ask
