"""A delta applied in place while the disk fails, or the process that writes to it: always a version in the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, cast

import pytest

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import DeltaDamaged, DiskFull
from flashboot_agent.delta import journal as journal_module
from flashboot_agent.delta.arena import Update
from flashboot_agent.delta.file import open_delta
from flashboot_agent.delta.journal import Journal
from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource
from tests.children import in_child
from tests.deltas import BFLOAT16, CONTENT, small_delta, source, stepped_version
from tests.updates import apply, recover, shared, small_windows

THREE_WINDOWS = 1_300_000
"""Elements."""


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    small_windows(monkeypatch)


@pytest.mark.parametrize("room", range(7))
def test_a_disk_that_is_full_from_any_moment_on_leaves_the_arena_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    path, base, new = small_delta(tmp_path, THREE_WINDOWS)
    memory, left = shared(base), room

    def limited(real: Callable[..., None]) -> Callable[..., None]:
        def write(*arguments: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(28, "No space left on device")
            real(*arguments)

        return write

    for name in ("append", "keep"):
        monkeypatch.setattr(Journal, name, limited(getattr(Journal, name)))
    with memoryview(memory) as view:
        if room == 6:
            apply(view, path, tmp_path)
        else:
            with pytest.raises(DiskFull, match=r"small.delta \(7 → 8\): .*journal: No space left"):
                apply(view, path, tmp_path)
        assert memory[:] == (new if room == 6 else base)
    assert not list((tmp_path / "journal").iterdir())
    assert (tmp_path / "reverse.delta").exists() == (room == 6)
    memory.close()


@pytest.mark.parametrize("to", ["base", "result"])
def test_a_disk_that_becomes_read_only_leaves_the_arena_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    path, base, new = small_delta(tmp_path, THREE_WINDOWS)
    memory, works = shared(base), 2

    def append(real: Callable[..., None], *arguments: object) -> None:
        nonlocal works
        works -= 1
        if works < 0:
            for name in ("append", "keep", "cut", "end"):
                patched.setattr(Journal, name, refused)
            refused()
        real(*arguments)

    def refused(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    real = Journal.append
    with memoryview(memory) as view:
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", lambda *arguments: append(real, *arguments))
            for name in ("keep", "cut", "end"):
                patched.setattr(Journal, name, getattr(Journal, name))
            with pytest.raises(OSError, match="Read-only"):
                apply(view, path, tmp_path)
        assert memory[:] == base
        recover(view, path, tmp_path, to)  # it can be written to again
    assert memory[:] == (new if to == "result" else base)
    assert not list((tmp_path / "journal").iterdir())
    memory.close()


@pytest.mark.parametrize(("file", "noted"), [("going.json", False), ("reverse", True)])
def test_an_end_that_can_not_be_noted_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, noted: bool
) -> None:
    path, base, new = small_delta(tmp_path)
    memory, fails = shared(base), [file]
    unlink = Path.unlink

    def failing(self: Path, missing_ok: bool = False) -> None:
        if self.exists() and self.name in fails:
            fails.remove(self.name)
            raise OSError(5, "Input/output error")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", failing)
    with memoryview(memory) as view:
        if noted:
            apply(view, path, tmp_path)
        else:
            with pytest.raises(OSError, match="Input"):
                apply(view, path, tmp_path)
            assert not (tmp_path / "reverse.delta").exists()
        assert memory[:] == (new if noted else base)
        assert not fails
        if noted:
            apply(view, tmp_path / "reverse.delta", tmp_path, version=8)
        else:
            apply(view, path, tmp_path)
    assert memory[:] == (base if noted else new)
    memory.close()


def back_from_the_end(memory: memoryview, path: Path, folder: Path) -> None:
    """All windows there, and all back."""
    with open_delta(path, None) as delta:

        def point(step: str) -> None:
            if step == "reverse named":
                raise OSError(5, "Input/output error")

        of = MemorySource(memory, delta.contents.runs, CONTENT)
        update = Update(delta, of, folder / "journal", point=point)
        update.apply(7, chunk_digests(memory), folder / "reverse.delta")


def dying_open(left: list[int], path: Path, mode: str) -> IO[bytes]:
    """The process ends when this has made, and emptied, so many files for words of windows."""
    file = cast(IO[bytes], open(path, mode))  # noqa: SIM115 - the caller's
    if path.name.startswith("window"):
        left[0] -= 1
        if not left[0]:
            os._exit(9)
    return file


def test_a_process_that_dies_while_it_keeps_a_window_can_be_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, base, new = small_delta(tmp_path, THREE_WINDOWS)
    memory = shared(base)
    for number in range(1, 7):  # three windows there, and three back
        for to, expected in (("base", base), ("result", new)):
            memory[:] = base
            folder = tmp_path / f"{number}-{to}"
            with memoryview(memory) as view, monkeypatch.context() as patched:
                patched.setattr(journal_module, "open", partial(dying_open, [number]), raising=False)
                assert in_child(partial(back_from_the_end, view, path, folder)) == 9
            with memoryview(memory) as view:
                recover(view, path, folder, to)
            assert memory[:] == expected, f"died while it kept its {number}. window, to {to}"
    memory.close()


def test_an_arena_that_became_the_base_again_keeps_its_own_way_back(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path)
    then = stepped_version(new, BFLOAT16, 0.01, seed=3)
    make(source(new), source(then), tmp_path / "next.delta", Versions(8, 9))
    memory = shared(base)
    with memoryview(memory) as view:
        steps = apply(view, path, tmp_path)
        back = (tmp_path / "reverse.delta").read_bytes()
        for step in range(len(steps) - 1):
            assert in_child(partial(apply, view, tmp_path / "next.delta", tmp_path, step, version=8)) == 9
            named = (tmp_path / "reverse.delta").read_bytes() != back
            recover(view, tmp_path / "next.delta", tmp_path, "base")
            assert memory[:] == new
            assert (tmp_path / "reverse.delta").exists() != named
            (tmp_path / "reverse.delta").write_bytes(back)
        apply(view, tmp_path / "reverse.delta", tmp_path, version=8)
    assert memory[:] == base
    memory.close()


def test_an_arena_that_something_else_changed_meanwhile_is_of_neither_version(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path)
    memory = shared(base)
    with memoryview(memory) as view:
        assert in_child(partial(apply, view, path, tmp_path, 6)) == 9  # the second window is kept
        for to in ("base", "result"):
            memory[5] ^= 1
            with pytest.raises(DeltaDamaged, match=r"chunk 0 is of neither version of .*small.delta \(7 → 8\)"):
                recover(view, path, tmp_path, to)
            memory[5] ^= 1
        recover(view, path, tmp_path, "result")
    assert memory[:] == new
    memory.close()
