"""The images of a node: what is found at a start, what goes when room is needed, what is never believed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from flashboot_agent.core.errors import ImageDamaged, UnknownArena
from flashboot_agent.load.image_write import TEMPORARY
from flashboot_agent.node.images import ImageStore
from tests.images import image_bytes

DATA = b"x" * 3000
SIZE = len(image_bytes(DATA))
A, B, C = (f"arena-{letter * 32}" for letter in "abc")


def put(folder: Path, arena: str, *, used_at: int = 0) -> Path:
    path = folder / f"{arena}.image"
    path.write_bytes(image_bytes(DATA, arena=arena))
    os.utime(path, (used_at, used_at))
    return path


def opened(folder: Path, budget: int = 10 * SIZE) -> ImageStore:
    images = ImageStore(folder, budget, lambda: None)
    images.open()
    assert images.usable
    return images


def there(folder: Path) -> set[str]:
    return {path.name.removesuffix(".image") for path in folder.iterdir()}


def test_what_is_whole_is_found_and_the_rest_is_removed(tmp_path: Path) -> None:
    put(tmp_path, A)
    put(tmp_path, B).rename(tmp_path / f"{C}.image")  # under another's name
    (tmp_path / f"{B}.image").write_bytes(image_bytes(DATA, arena=B)[:-1])
    (tmp_path / f"{B}.image{TEMPORARY}").write_bytes(b"")
    (tmp_path / "somebody's").write_bytes(b"")
    images = opened(tmp_path)
    assert there(tmp_path) == {A, "somebody's"}
    assert images.used_bytes == SIZE
    assert (found := images.find(A)) is not None
    assert found.bytes == len(DATA)
    assert images.find(B) is None


def test_a_budget_of_zero_touches_nothing(tmp_path: Path) -> None:
    put(tmp_path, A)
    images = ImageStore(tmp_path, 0, lambda: None)
    images.open()
    assert not images.usable
    assert images.find(A) is None
    assert there(tmp_path) == {A}


def test_a_folder_that_can_not_be_used_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    images = ImageStore(tmp_path / "file", SIZE, lambda: None)
    images.open()
    assert not images.usable
    assert "the folder can't be used" in caplog.text


def test_a_smaller_budget_removes_the_least_recently_used(tmp_path: Path) -> None:
    for used_at, arena in enumerate((B, C, A)):
        put(tmp_path, arena, used_at=used_at)
    opened(tmp_path, 2 * SIZE + 1)
    assert there(tmp_path) == {A, C}


def test_the_least_recently_used_goes_and_never_one_that_is_read(tmp_path: Path) -> None:
    for used_at, arena in enumerate((A, B)):
        put(tmp_path, arena, used_at=used_at)
    changes: list[None] = []
    images = ImageStore(tmp_path, 2 * SIZE, lambda: changes.append(None))
    images.open()
    with images.reading(A) as image:
        assert image.manifest.arena == A
        assert images.make_room(SIZE, C)
        assert there(tmp_path) == {A}, "the other is older now, and is not read"
        images.add(image.manifest.model_copy(update={"arena": C}), SIZE)
        put(tmp_path, C)
        with images.reading(C):
            assert not images.make_room(SIZE, B)
    assert images.make_room(SIZE, A), "the old image of the same arena goes first"
    assert there(tmp_path) == {C}
    assert not images.make_room(3 * SIZE, B)
    assert there(tmp_path) == {C}, "what never fits removes nothing"
    assert changes


def test_a_damaged_image_is_gone_and_told_until_there_is_a_new_one(tmp_path: Path) -> None:
    put(tmp_path, A)
    images = opened(tmp_path)
    first = images.find(A)
    assert first is not None
    with pytest.raises(ImageDamaged, match="differs") as found, images.reading(A):
        raise ImageDamaged(f"{tmp_path}: the chunk at 0 differs")
    images.damaged(A, found.value)
    assert (images.find(A), there(tmp_path)) == (None, set())
    assert (problem := images.problem(A)) is not None
    assert problem.reason == "ImageDamaged"
    with pytest.raises(UnknownArena), images.reading(A):
        pass
    images.add(first, SIZE)
    assert images.problem(A) is None


def test_a_process_without_descriptors_damages_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be removed, and terabytes loaded or cloned again."""
    put(tmp_path, A)
    images = opened(tmp_path)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(OSError, match="Too many open files"), images.reading(A):
            pass
    with images.reading(A) as image:
        assert image.manifest.arena == A


def test_an_image_that_somebody_took_away_is_damaged(tmp_path: Path) -> None:
    put(tmp_path, A)
    images = opened(tmp_path)
    (tmp_path / f"{A}.image").unlink()
    with pytest.raises(ImageDamaged, match="can't be opened: No such file"), images.reading(A):
        pass
