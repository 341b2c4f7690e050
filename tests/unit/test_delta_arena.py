"""A delta applied to an arena in place: all or nothing, and a process that dies at any step is put right."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import BadRequest, DeltaBaseMismatch, DeltaDamaged
from flashboot_agent.delta.arena import Update, put_back
from flashboot_agent.delta.file import open_delta
from flashboot_agent.delta.source import MemorySource
from tests.children import in_child
from tests.deltas import CONTENT, small_delta, source
from tests.updates import apply, recover, shared, small_windows


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    small_windows(monkeypatch)


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


@pytest.mark.slow
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
