"""`flashboot delta pull`: a checkpoint and an arena image follow a chain, whatever kills the command in between."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.files import exchange
from flashboot_agent.load.image import open_image
from flashboot_agent.sync import pull as pull_module
from flashboot_agent.sync.chain import Step
from flashboot_agent.sync.http import HttpOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.storage_places import StoragePlaces
from flashboot_agent.sync.tensors import Box, TensorPlaces, TensorSpec
from flashboot_operator.cli.main import main
from tests.checkpoints import checkpoint, read
from tests.children import in_child
from tests.component.sync_server import serving
from tests.deltas import stepped_version, weights
from tests.images import image_bytes
from tests.layouts import small
from tests.syncs import publish

ELEMENTS = 200_000
NAMES = [f"layers.{i}.weight" for i in range(4)]


class Trainer:
    """Publishes versions 3 to 6 of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "published"
        first = {name: weights(ELEMENTS + i, 3, seed=i) for i, name in enumerate(NAMES)}
        self.versions = {3: first}
        for version in (4, 5, 6):
            last = self.versions[version - 1]
            self.versions[version] = {name: stepped_version(data, 3, 0.01, seed=version) for name, data in last.items()}
        places = TensorPlaces({name: TensorSpec("BF16", (len(data) // 2,)) for name, data in first.items()})
        with Publisher(self.folder, places) as publisher:
            for version, tensors in self.versions.items():
                publish(publisher, version, tensors)

    def checkpoint(self, path: Path, version: int = 3) -> Path:
        checkpoint(path, self.versions[version], 2)
        (path / "config.json").write_text("{}")
        (path / "tokenizer").mkdir()
        (path / "tokenizer" / "words").write_text("a b")
        return path


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_becomes_the_newest_version_in_its_place(
    tmp_path: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trainer.checkpoint(tmp_path / "policy")
    before = names(path)
    with serving(trainer.folder) as server:
        assert main(["delta", "pull", server.url, str(path), "-o", "json"]) == 0
        told = capsys.readouterr()
        said = json.loads(told.out)
        assert (said["baseVersion"], said["version"]) == (3, 6)
        assert said["deltas"] == ["3-4.delta", "4-5.delta", "5-6.delta"]
        assert "5-6.delta: " in told.err
        assert read(path) == trainer.versions[6]
        assert names(path) == before
        assert (path / "tokenizer" / "words").read_text() == "a b"
        server.asked.clear()
        assert main(["delta", "pull", server.url, str(path)]) == 0
        assert "6, as it was" in capsys.readouterr().out
        assert server.asked == []
    assert names(tmp_path) == ["policy", "published"]


def test_a_version_may_be_asked_for_and_written_elsewhere(
    tmp_path: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trainer.checkpoint(tmp_path / "policy")
    origin, new = str(trainer.folder), str(tmp_path / "new")
    assert main(["delta", "pull", origin, str(path), "--as", new, "--to", "5", "--version", "3"]) == 0
    assert read(path) == trainer.versions[3]
    assert read(tmp_path / "new") == trainer.versions[5]
    assert (tmp_path / "new" / "config.json").exists()
    capsys.readouterr()
    for words, says in (
        (["--as", new], "is there already"),
        (["--to", "7"], "version 7 is not published yet, the newest is 6"),
        (["--version", "9"], "does not know version 9"),
        (["--version", "4"], "a delta for the version that is there is needed"),
        (["--trust", "none"], "none can't be read as a public key"),
    ):
        assert main(["delta", "pull", origin, str(path), *words]) == 1
        assert says in capsys.readouterr().err
    assert main(["delta", "pull", origin, new, "--to", "4"]) == 1
    assert "leads forward only" in capsys.readouterr().err
    assert main(["delta", "pull", origin, str(path), "--to", "x"]) == 2
    data = bytearray((path / "part0.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "part0.safetensors").write_bytes(data)
    capsys.readouterr()
    assert main(["delta", "pull", origin, str(path)]) == 1
    assert "is no version that the chain knows" in capsys.readouterr().err
    assert names(tmp_path) == ["new", "policy", "published"]


def test_one_file_is_replaced_too(tmp_path: Path, trainer: Trainer) -> None:
    folder = checkpoint(tmp_path / "one", trainer.versions[3], 1)
    path = folder / "part0.safetensors"
    assert main(["delta", "pull", str(trainer.folder), str(path)]) == 0
    assert read(folder) == trainer.versions[6]
    assert names(folder) == ["part0.safetensors"]


def test_an_arena_image_knows_its_version(tmp_path: Path) -> None:
    layout = small(arena_bytes=12288)
    first = weights(6144, 3)
    places = StoragePlaces(layout, memoryview(first))
    steps = [{name: os.urandom(spec.shape[0]) for name, spec in places.tensors.items()} for _ in range(3)]
    images = []
    for step in steps:
        images.append(bytearray(first))
        for name, data in step.items():
            places.write(name, Box((0,), (len(data),)), memoryview(data), memoryview(images[-1]))
    path = tmp_path / "image"
    path.write_bytes(image_bytes(bytes(images[1]), layout.to_bytes()))
    with Publisher(tmp_path / "published", places) as publisher:
        for version, each in enumerate(steps):
            publish(publisher, version, each)
    assert main(["delta", "pull", str(tmp_path / "published"), str(path)]) == 0
    with open_image(path) as image:
        assert image.digests == chunk_digests(bytes(images[2]))
        assert path.read_bytes()[image.data_offset :] == images[2]
    assert names(tmp_path) == ["image", "published"]


def pulls(url: str, path: Path, dies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def swap(first: Path, second: Path) -> None:
        if dies == "before" and second == path:
            kill()
        exchange(first, second)
        if second == path:
            kill()

    monkeypatch.setattr(pull_module, "exchange", swap)
    with HttpOrigin(url, pause=0.01) as origin:

        def progress(step: Step, nbytes: int) -> None:
            if dies == step.file and nbytes == step.nbytes:
                kill()

        pull_module.pull(lambda spool: Receiver(origin, spool, None, progress), path)


def test_a_command_that_is_killed_leaves_one_whole_version_and_the_next_goes_on(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trainer.checkpoint(tmp_path / "policy")
    before = names(path)
    with serving(trainer.folder) as server:
        for dies, version, asked in (
            ("4-5.delta", 3, ["3-4.delta", "4-5.delta"]),
            ("before", 3, ["5-6.delta"]),  # the two others are here
            ("after", 6, []),
        ):
            server.asked.clear()
            assert in_child(partial(pulls, server.url, path, dies, monkeypatch)) == -signal.SIGKILL
            assert read(path) == trainer.versions[version], dies
            assert names(path) == before
            assert [name for name, _ in server.asked] == asked
        assert main(["delta", "pull", server.url, str(path)]) == 0
    assert read(path) == trainer.versions[6]
    assert names(tmp_path) == ["policy", "published"]


def test_one_at_a_time_and_only_versions_of_the_same(
    tmp_path: Path, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trainer.checkpoint(tmp_path / "policy")
    with pull_module._folder(pull_module.folder_of(path)):
        assert main(["delta", "pull", str(trainer.folder), str(path)]) == 1
    assert "another process pulls there" in capsys.readouterr().err
    other = checkpoint(tmp_path / "other", {"x": b"abcd"}, 1)
    assert main(["delta", "pull", str(trainer.folder), str(other), "--version", "3"]) == 1
    assert "has versions of checkpoint" in capsys.readouterr().err
    assert main(["delta", "pull", "http://127.0.0.1:1", str(path)]) == 1
    assert "127.0.0.1:1/chain" in capsys.readouterr().err
    assert main(["delta", "pull", str(tmp_path), str(path)]) == 1
    assert "nothing is published" in capsys.readouterr().err
    assert names(tmp_path) == ["other", "policy", "published"]


def test_where_a_folder_can_not_be_exchanged_nothing_is_fetched(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trainer.checkpoint(tmp_path / "policy")

    def refused(first: Path, second: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(pull_module, "exchange", refused)
    with serving(trainer.folder) as server:
        assert main(["delta", "pull", server.url, str(path)]) == 1
        assert server.asked == []
    assert "can't be exchanged with its new version here (Invalid argument); give a new name" in capsys.readouterr().err
    assert read(path) == trainer.versions[3]
    assert names(tmp_path) == ["policy", "published"]


def test_from_inside_of_a_folder_of_links_whose_files_are_not_for_everybody(
    tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the cache of Hugging Face has them: links to files named by their digests."""
    path = trainer.checkpoint(tmp_path / "models" / "policy" / "snapshots" / "main")
    blobs = tmp_path / "models" / "policy" / "blobs"
    blobs.mkdir()
    for file in [path / "config.json", *path.glob("*.safetensors")]:
        file.chmod(0o640)
        file.rename(blobs / file.name)
        file.symlink_to(Path("../../blobs") / file.name)
    (path / "gone").symlink_to("../../blobs/gone")
    path.chmod(0o750)
    monkeypatch.chdir(path)
    elsewhere = tmp_path / "elsewhere"
    assert main(["delta", "pull", str(trainer.folder), ".", "--as", str(elsewhere), "--to", "5"]) == 0
    assert main(["delta", "pull", str(trainer.folder), "."]) == 0
    for folder, version in ((path, 6), (elsewhere, 5)):
        assert read(folder) == trainer.versions[version]
        assert (folder / "config.json").read_text() == "{}"
        assert folder.stat().st_mode & 0o777 == 0o750
        assert {file.stat().st_mode & 0o777 for file in folder.glob("*.*")} == {0o640}
    assert names(path.parent) == ["main"]
    assert names(blobs) == ["config.json", "part0.safetensors", "part1.safetensors"]
