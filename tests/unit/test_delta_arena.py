"""A delta applied to an arena in place: all or nothing, and a process that dies at any step is put right."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, cast

import pytest

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch, DeltaDamaged, DiskFull
from flashboot_agent.delta import arena as arena_module
from flashboot_agent.delta import journal as journal_module
from flashboot_agent.delta.arena import Update, put_back
from flashboot_agent.delta.file import open_delta
from flashboot_agent.delta.journal import Journal
from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.window import windows
from tests.children import in_child
from tests.deltas import BFLOAT16, CONTENT, small_delta, source, stepped_version

THREE_WINDOWS = 1_300_000
"""Elements."""


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_there_and_back_by_the_reverse_delta(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path)
    memory = shared(base)
    with memoryview(memory) as view:
        apply(view, path, tmp_path)
        assert memory[:] == new
        apply(view, tmp_path / "reverse.delta", tmp_path / "again", version=8)
        assert memory[:] == base
    assert not list((tmp_path / "journal").iterdir())
    memory.close()


def test_a_process_that_dies_at_any_step_leaves_what_can_be_put_right_both_ways(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path)
    memory = shared(base)
    with memoryview(memory) as view:
        steps = apply(view, path, tmp_path / "steps")
        for step in range(len(steps) - 1):  # the last one is behind the commit
            for to, expected in (("base", base), ("result", new)):
                memory[:] = base
                folder = tmp_path / f"{step}-{to}"
                assert in_child(partial(apply, view, path, folder, step, torn=new)) == 9
                again = 0  # the recovery dies, too, at each of its steps in turn
                while (status := in_child(partial(recover, view, path, folder, to, again))) == 9:
                    again += 1
                    assert again < 100
                assert status == 0
                assert memory[:] == expected, f"died at {steps[step]} ({step}), to {to}"
                assert not list((folder / "journal").iterdir())
    print(f"{len(steps) - 1} crash points, each recovered both ways: {steps}")
    memory.close()


def test_a_wrong_result_leaves_the_arena_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, base, _ = small_delta(tmp_path)
    memory = shared(base)

    def damaged(self: object, path: Path) -> None:
        raise OSError(5, "Input/output error")

    with memoryview(memory) as view:
        monkeypatch.setattr(Update, "_keep_reverse", damaged)
        with pytest.raises(OSError, match="Input"):
            apply(view, path, tmp_path)
    assert memory[:] == base
    assert not list((tmp_path / "journal").iterdir())
    memory.close()


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


def test_one_update_at_a_time(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path)
    memory = shared(base)
    refused: list[str] = []

    with memoryview(memory) as view, open_delta(path, None) as delta:

        def second(step: str) -> None:
            if step == "located":
                with pytest.raises(BadRequest, match="another update"):
                    apply(view, path, tmp_path)
                with pytest.raises(BadRequest, match="another update"):
                    recover(view, path, tmp_path, "base")
                refused.append(step)

        of = MemorySource(view, delta.contents.runs, CONTENT)
        Update(delta, of, tmp_path / "journal", point=second).apply(7, chunk_digests(view), tmp_path / "reverse.delta")
        assert len(refused) == 2
    assert memory[:] == new
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


def test_versions_and_bases_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    path, base, _ = small_delta(tmp_path)
    memory = shared(base)
    with memoryview(memory) as view:
        with pytest.raises(DeltaBaseMismatch, match="has version 6"):
            apply(view, path, tmp_path, version=6)
        memory[5] ^= 1
        changed = memory[:]
        with pytest.raises(DeltaBaseMismatch, match="other bytes"):
            apply(view, path, tmp_path)
        assert memory[:] == changed
        with open_delta(path, None) as delta:
            update = Update(delta, MemorySource(view, delta.contents.runs, CONTENT), tmp_path / "journal")
            with pytest.raises(BadRequest, match="no update"):
                update.recover("base", tmp_path / "reverse.delta")
    assert source(base).nbytes == len(base)
    memory.close()


def test_a_kept_window_without_a_way_back_is_refused(tmp_path: Path) -> None:
    path, base, _ = small_delta(tmp_path)
    memory = shared(base)
    with memoryview(memory) as view:
        assert in_child(partial(apply, view, path, tmp_path, 8)) == 9
        (tmp_path / "journal" / "reverse").unlink()
        with pytest.raises(DeltaDamaged, match="no way back"):
            recover(view, path, tmp_path, "base")
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


def test_what_a_crash_left_is_put_back_without_the_delta(tmp_path: Path) -> None:
    path, base, new = small_delta(tmp_path)
    memory = shared(base)
    with memoryview(memory) as view:
        steps = apply(view, path, tmp_path / "steps")
        for step in range(len(steps) - 1):
            memory[:] = base
            folder = tmp_path / str(step)
            assert in_child(partial(apply, view, path, folder, step, torn=new)) == 9
            for _ in range(2):  # the second time nothing is going any more
                put_back(view, folder / "journal", folder / "reverse.delta")
            assert memory[:] == base, f"died at {steps[step]} ({step})"
            assert not list((folder / "journal").iterdir())
    memory.close()


def test_a_journal_of_another_arena_is_told(tmp_path: Path) -> None:
    path, base, _ = small_delta(tmp_path)
    memory = shared(base)
    with memoryview(memory) as view:
        assert in_child(partial(apply, view, path, tmp_path, 4)) == 9
        with pytest.raises(DeltaDamaged, match="a run of words of 2 bytes"):
            put_back(memoryview(bytearray(10)), tmp_path / "journal", tmp_path / "reverse.delta")
    memory.close()
