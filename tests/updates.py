"""An arena that outlives a process, brought from one version to the next, for tests that end it at any step."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.delta import arena as arena_module
from flashboot_agent.delta.arena import Update
from flashboot_agent.delta.file import open_delta
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.window import windows
from tests.deltas import CONTENT


def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one chunk, so that few bytes have several."""
    monkeypatch.setattr(arena_module, "windows", lambda nbytes: windows(nbytes, 1))


def shared(data: bytes) -> mmap.mmap:
    """Memory that outlives a child process, as an arena's does."""
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def apply(
    memory: memoryview, path: Path, folder: Path, step: int | None = None, *, version: int = 7, torn: bytes = b""
) -> list[str]:
    """The steps that it went through. `step`: the process ends there; with `torn`, the result, in the midst of writing
    the window that it has just kept."""
    steps: list[str] = []

    def point(name: str) -> None:
        steps.append(name)
        if len(steps) - 1 == step:
            if torn and name == "kept":
                begin = (steps.count("kept") - 1) * DIGEST_CHUNK_BYTES
                end = begin + (min(DIGEST_CHUNK_BYTES, len(torn) - begin)) // 2
                memory[begin:end] = torn[begin:end]
            os._exit(9)

    with open_delta(path, None) as delta:
        of = MemorySource(memory, delta.contents.runs, CONTENT)
        update = Update(delta, of, folder / "journal", threads=2, point=point)
        update.apply(version, chunk_digests(memory), folder / "reverse.delta")
    return steps


def recover(memory: memoryview, path: Path, folder: Path, to: str, step: int | None = None) -> None:
    count = 0

    def point(name: str) -> None:
        nonlocal count
        if count == step:
            os._exit(9)
        count += 1

    if not (folder / "journal" / "going.json").exists():
        return  # it died behind the end of its work
    with open_delta(path, None) as delta:
        of = MemorySource(memory, delta.contents.runs, CONTENT)
        update = Update(delta, of, folder / "journal", point=point)
        update.recover("base" if to == "base" else "result", folder / "reverse.delta")
