"""`flashboot delta` on arena images and on safetensors checkpoints."""

from __future__ import annotations

import json
import resource
from contextlib import nullcontext
from pathlib import Path

import pytest

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import ImageDamaged
from flashboot_agent.delta.source import ImageSource
from flashboot_agent.load.image import open_image
from flashboot_operator.cli.main import main
from tests.checkpoints import checkpoint, entry, read, tensor_file
from tests.deltas import stepped_version, weights
from tests.images import image_bytes
from tests.layouts import small
from tests.syncs import files_of_at_most

ELEMENTS = 300_000


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path, dict[str, bytes]]:
    base = {f"layers.{i}.weight": weights(ELEMENTS + i, 3, seed=i) for i in range(5)}
    new = {name: stepped_version(data, 3, 0.01) for name, data in base.items()}
    return checkpoint(tmp_path / "base", base, 2), checkpoint(tmp_path / "new", new, 3), new


def test_a_checkpoint_however_it_is_cut_into_files(
    tmp_path: Path, versions: tuple[Path, Path, dict[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new, tensors = versions
    delta, result = tmp_path / "d.delta", tmp_path / "result"
    assert main(["delta", "make", str(base), str(new), str(delta), "--base-version", "3", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["baseVersion"], said["newVersion"], said["subject"]) == (3, 4, "checkpoint")
    assert said["timesSmaller"] > 100
    assert main(["delta", "inspect", str(delta)]) == 0
    assert "3 → 4" in capsys.readouterr().out
    assert main(["delta", "verify", str(delta), str(base)]) == 0
    capsys.readouterr()
    assert main(["delta", "apply", str(delta), str(base), str(result)]) == 0
    assert f"{result} is version 4 of {base}: {said['resultDigest']}, not signed" in capsys.readouterr().out
    assert read(result) == tensors
    assert sorted(path.name for path in result.iterdir()) == sorted(path.name for path in base.iterdir())


def test_an_image_its_new_digests_and_its_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = small(arena_bytes=12288).to_bytes()
    data = weights(6144, 3)
    new = stepped_version(data, 3, 0.02)
    paths = [tmp_path / name for name in ("base", "new", "d.delta", "result")]
    paths[0].write_bytes(image_bytes(data, layout))
    paths[1].write_bytes(image_bytes(new, layout))
    base, other, delta, result = map(str, paths)
    assert main(["delta", "make", base, other, delta, "--new-version", "6"]) == 0
    assert main(["delta", "apply", delta, base, result]) == 0
    for before, after, told in ((base, result, "0 → 6"), (result, base, "6 → 7")):
        capsys.readouterr()
        assert main(["delta", "make", before, after, str(tmp_path / told)]) == 0
        assert told in capsys.readouterr().out
    with open_image(paths[3]) as image:
        assert image.digests == chunk_digests(new)
        assert paths[3].read_bytes()[image.data_offset :] == new


@pytest.mark.parametrize("damaged", ["base", "new"])
def test_an_image_that_a_disk_damaged_becomes_no_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    layout, data = small(arena_bytes=12288).to_bytes(), weights(6144, 3)
    for name, content in (("base", data), ("new", stepped_version(data, 3, 0.02))):
        image = bytearray(image_bytes(content, layout))
        image[-1] ^= name == damaged
        (tmp_path / name).write_bytes(image)
    for name in ("base", "new"):
        with open_image(tmp_path / name) as opened, pytest.raises(ImageDamaged) if name == damaged else nullcontext():
            ImageSource(opened).read_into(memoryview(bytearray(12288)))
    assert main(["delta", "make", str(tmp_path / "base"), str(tmp_path / "new"), str(tmp_path / "d.delta")]) == 1
    assert f"{tmp_path / damaged}: chunk 0 differs from its digest" in capsys.readouterr().err
    assert not (tmp_path / "d.delta").exists()


def test_signed_deltas_need_the_key(tmp_path: Path, versions: tuple[Path, Path, dict[str, bytes]]) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    base, new, _ = versions
    key, private, public, delta = Ed25519PrivateKey.generate(), tmp_path / "k", tmp_path / "p", tmp_path / "d.delta"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    assert main(["delta", "make", str(base), str(new), str(delta), "--sign", str(private)]) == 0
    assert main(["delta", "verify", str(delta), str(base)]) == 1
    assert main(["delta", "verify", str(delta), str(base), "--trust", str(public)]) == 0


def test_what_does_not_fit_is_told_and_leaves_nothing(
    tmp_path: Path, versions: tuple[Path, Path, dict[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new, tensors = versions
    delta, result = tmp_path / "d.delta", tmp_path / "result"
    less = checkpoint(tmp_path / "less", dict(list(tensors.items())[:3]), 1)
    assert main(["delta", "make", str(base), str(less), str(delta)]) == 1
    assert "not two versions of the same" in capsys.readouterr().err
    assert not delta.exists()
    assert main(["delta", "make", str(base), str(new), str(delta)]) == 0
    before = {path.name for path in tmp_path.iterdir()}
    assert main(["delta", "apply", str(delta), str(new), str(result)]) == 1
    assert "a delta for the version that is there is needed" in capsys.readouterr().err
    assert main(["delta", "apply", str(tmp_path / "none"), str(base), str(result)]) == 1
    assert "is not there" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_nothing_that_is_there_is_replaced_or_removed(
    tmp_path: Path, versions: tuple[Path, Path, dict[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new, _ = versions
    delta, one, other = (tmp_path / name for name in ("d.delta", "one.safetensors", "other.safetensors"))
    (tmp_path / "dangling").symlink_to("nowhere")
    one.write_bytes(tensor_file({"a": entry("BF16", [4], 0)}, bytes(8)))
    other.write_bytes(tensor_file({"a": entry("BF16", [4], 0)}, bytes(range(8))))
    for taken in (other, one, base, tmp_path / "dangling"):
        assert main(["delta", "make", str(one), str(other), str(taken)]) == 1
        assert f"{taken} is there already" in capsys.readouterr().err
    assert main(["delta", "make", str(base), str(new), str(delta)]) == 0
    for taken in (base, one, tmp_path / "dangling"):
        assert main(["delta", "apply", str(delta), str(base), str(taken)]) == 1
        assert f"{taken} is there already" in capsys.readouterr().err
    somebodys = tmp_path / "result.writing"
    somebodys.mkdir()
    (somebodys / "precious").touch()
    assert main(["delta", "apply", str(delta), str(base), str(tmp_path / "result")]) == 1
    assert f"{somebodys} is there: somebody else is applying" in capsys.readouterr().err
    assert (somebodys / "precious").exists()
    assert other.read_bytes().endswith(bytes(range(8)))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--base-version", "5", "--new-version", "5"], "from version 5 to itself"),
        (["--new-version", "-1"], "new_version: Input should be greater than or equal to 0"),
        (["--base-version", str((1 << 63) - 1)], "new_version: Input should be less than 9223372036854775808"),
        (["--note", "x" * 4097], "note: String should have at most 4096 characters"),
    ],
)
def test_versions_and_notes_that_no_delta_has_are_refused_before_anything_is_read(
    tmp_path: Path,
    versions: tuple[Path, Path, dict[str, bytes]],
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    base, new, _ = versions
    before = sorted(tmp_path.iterdir())
    assert main(["delta", "make", str(base), str(new), str(tmp_path / "d.delta"), *words]) == 1
    assert f"flashboot: {tmp_path / 'd.delta'}: " in (said := capsys.readouterr().err)
    assert told in said
    assert sorted(tmp_path.iterdir()) == before


def test_a_checkpoint_without_an_element_has_no_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for path in paths:
        path.write_bytes(tensor_file({"empty": entry("F32", [0, 3], 0)}, 0))
    assert main(["delta", "make", *map(str, paths), str(tmp_path / "d.delta")]) == 1
    assert "a.safetensors has no bytes" in capsys.readouterr().err
    assert not (tmp_path / "d.delta").exists()


def test_a_full_disk_is_told_with_what_was_to_be_written(
    tmp_path: Path, versions: tuple[Path, Path, dict[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new, _ = versions
    delta, result = tmp_path / "d.delta", tmp_path / "result"
    for room in (0, 70, 5000, 20000):
        with files_of_at_most(room):
            assert main(["delta", "make", str(base), str(new), str(delta)]) == 1
        assert f"{delta} (0 → 1): {tmp_path}: File too large; make room" in capsys.readouterr().err
    assert main(["delta", "make", str(base), str(new), str(delta)]) == 0
    before = sorted(tmp_path.iterdir())
    with files_of_at_most(1_000_000):
        assert main(["delta", "apply", str(delta), str(base), str(result)]) == 1
    assert f"{result}, made by {delta} (0 → 1): {tmp_path}: File too large" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_words_that_need_an_engine_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("trace", "convert"):
        assert main(["delta", word, str(tmp_path / "image"), str(tmp_path / "new"), "--", "--model-path", "/m"]) == 1
        assert "finds no sglang" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_more_files_than_a_shell_lets_be_open(tmp_path: Path) -> None:
    tensors = {f"layers.{i}": bytes([i, 0]) for i in range(60)}
    base = checkpoint(tmp_path / "base", tensors, 60)
    new = checkpoint(tmp_path / "new", {name: data[::-1] for name, data in tensors.items()}, 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        assert main(["delta", "make", str(base), str(new), str(tmp_path / "d.delta")]) == 0
        assert main(["delta", "apply", str(tmp_path / "d.delta"), str(base), str(tmp_path / "result")]) == 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (64, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read(tmp_path / "result") == read(new)


def test_a_folder_that_is_not_there_is_named(
    tmp_path: Path, versions: tuple[Path, Path, dict[str, bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    base, new, _ = versions
    path = tmp_path / "none" / "d.delta"
    assert main(["delta", "make", str(base), str(new), str(path)]) == 1
    assert f"{path}.writing: No such file" in capsys.readouterr().err
