"""The cache of e2e/setup_env: an entry is complete or absent, built once, and named after what it was made from."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from setup_env.cache import Cache, key_of

E2E = Path(__file__).resolve().parents[2] / "e2e"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def writes(text: str) -> Callable[[Path], None]:
    def build(into: Path) -> None:
        (into / "file").write_text(text)

    return build


def unfinished(cache: Cache, name: str) -> list[str]:
    return [p.name for p in (cache.root / name).iterdir() if ".tmp-" in p.name]


def child(code: str, root: Path) -> subprocess.Popen[str]:
    """Another clone's process; it says a line when it is where we want it."""
    source = f"from pathlib import Path\nfrom setup_env.cache import Cache\ncache = Cache(Path({str(root)!r}))\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": str(E2E)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


BUILDS_UNTIL_TOLD = """
def build(into):
    (into / "file").write_text("theirs")
    print("building", flush=True)
    input()
print(cache.entry("thing", ["a"], build) / "file")
"""


def test_an_entry_is_built_once_and_found_again(cache: Cache) -> None:
    first = cache.entry("thing", ["a"], writes("1"))
    assert cache.entry("thing", ["a"], writes("2")) == first
    assert (first / "file").read_text() == "1"


def test_other_material_gives_another_entry(cache: Cache, tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text("x==1")
    first = cache.entry("thing", [pins], writes("1"))
    pins.write_text("x==2")
    assert cache.entry("thing", [pins], writes("2")) != first


@pytest.mark.parametrize(
    ("left", "right"),
    [(["ab", "c"], ["a", "bc"]), (["a"], ["a", ""]), (["a", "b"], ["b", "a"])],
    ids=["border", "empty", "order"],
)
def test_keys_tell_materials_apart(left: list[str], right: list[str]) -> None:
    assert key_of(left) != key_of(right)


def test_a_folder_counts_with_names_modes_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "a"
    file.write_text("1")
    keys = {key_of([folder])}
    file.chmod(0o755)
    keys.add(key_of([folder]))
    file.rename(folder / "b")
    keys.add(key_of([folder]))
    (folder / "b").write_text("2")
    keys.add(key_of([folder]))
    assert len(keys) == 4


def test_a_failed_build_leaves_nothing_and_its_log(cache: Cache) -> None:
    def fails(into: Path) -> None:
        (into / "build.log").write_text("the reason")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.entry("thing", ["a"], fails)
    assert not cache.path("thing", ["a"]).exists()
    assert unfinished(cache, "thing") == []
    assert (cache.root / "failed-thing.log").read_text() == "the reason"
    assert (cache.entry("thing", ["a"], writes("1")) / "file").read_text() == "1"


def test_a_build_killed_half_way_is_neither_used_nor_kept(cache: Cache) -> None:
    with child(BUILDS_UNTIL_TOLD, cache.root) as other:
        assert line_of(other) == "building"
        other.send_signal(signal.SIGKILL)
    assert len(unfinished(cache, "thing")) == 1
    assert (cache.entry("thing", ["a"], writes("mine")) / "file").read_text() == "mine"
    assert unfinished(cache, "thing") == []


def test_leftovers_of_another_key_go_too_unless_somebody_builds_them(cache: Cache) -> None:
    with child(BUILDS_UNTIL_TOLD, cache.root) as other:
        assert line_of(other) == "building"
        cache.entry("thing", ["b"], writes("1"))
        assert len(unfinished(cache, "thing")) == 1, "a build in progress must be left alone"
        other.send_signal(signal.SIGKILL)
    cache.entry("thing", ["c"], writes("1"))
    assert unfinished(cache, "thing") == []


def test_two_clones_build_a_thing_once(cache: Cache, capfd: pytest.CaptureFixture[str]) -> None:
    mine: list[Path] = []
    with child(BUILDS_UNTIL_TOLD, cache.root) as other:
        assert line_of(other) == "building"
        waiter = threading.Thread(target=lambda: mine.append(cache.entry("thing", ["a"], writes("mine"))))
        waiter.start()
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        theirs = line_of(other)
        waiter.join(timeout=30)
    assert mine == [Path(theirs).parent]
    assert Path(theirs).read_text() == "theirs"


def test_only_the_last_used_entries_are_kept(cache: Cache) -> None:
    old = cache.entry("thing", ["old"], writes("1"))
    older = cache.entry("thing", ["older"], writes("1"))
    os.utime(old, (2, 2))
    os.utime(older, (1, 1))
    new = cache.entry("thing", ["new"], writes("1"), keep=2)
    assert new.exists()
    assert old.exists()
    assert not older.exists()
    assert unfinished(cache, "thing") == []


def test_an_entry_in_use_is_kept(cache: Cache) -> None:
    used = cache.entry("thing", ["used"], writes("1"))
    held = cache.hold(used)
    cache.entry("thing", ["new"], writes("1"), keep=1)
    assert used.exists()
    os.close(held)
    cache.entry("thing", ["newer"], writes("1"), keep=1)
    assert not used.exists()
