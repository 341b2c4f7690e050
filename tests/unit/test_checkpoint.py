"""Checkpoints: sound ones pass, and every kind of damage gets the right type and a message that names the file."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from flashboot_agent.core import checkpoint
from flashboot_agent.core.checkpoint import check_config, check_weights
from flashboot_agent.core.errors import (
    CheckpointIndexMissingShard,
    CheckpointMalformed,
    CheckpointMissing,
    CheckpointTruncated,
)
from flashboot_agent.core.safetensors_header import BITS, LENGTH_BYTES, MAX_HEADER, check_header
from tests.checkpoints import entry, tensor_file

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


SHARD_ONE = tensor_file({"a": entry("BF16", [4, 8], 0), "b": entry("F32", [3], 64)}, 76, metadata={"format": "pt"})
SHARD_TWO = tensor_file({"c": entry("F8_E4M3", [5], 0), "empty": entry("I64", [0, 7], 5)}, 5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3MoeForCausalLM"]}))
    (tmp_path / ONE).write_bytes(SHARD_ONE)
    (tmp_path / TWO).write_bytes(SHARD_TWO)
    write_index(tmp_path, {"a": ONE, "b": ONE, "c": TWO, "empty": TWO})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / checkpoint.INDEX).write_text(json.dumps({"metadata": {"total_size": 81}, "weight_map": weight_map}))


def test_a_sound_checkpoint_passes(folder: Path) -> None:
    assert check_config(folder)["architectures"] == ["Qwen3MoeForCausalLM"]
    weights = check_weights(folder)
    assert (weights.files, weights.tensors, weights.data_bytes) == ((ONE, TWO), 4, 81)


def test_a_checkpoint_without_an_index_passes(folder: Path) -> None:
    (folder / checkpoint.INDEX).unlink()
    assert check_weights(folder).tensors == 4
    (folder / ONE).rename(folder / "model.safetensors")
    (folder / TWO).unlink()
    assert check_weights(folder).files == ("model.safetensors",)


def test_links_as_in_the_hugging_face_cache_pass(folder: Path) -> None:
    blobs = folder / "blobs"
    blobs.mkdir()
    for name in (ONE, TWO, "config.json"):
        shutil.move(folder / name, blobs / name)
        (folder / name).symlink_to(Path("blobs") / name)
    check_config(folder)
    assert check_weights(folder).tensors == 4


def test_files_that_the_index_does_not_name_do_not_matter(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"whatever")
    check_weights(folder)


# config.json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "architectures"),
        (b'{"architectures": []}', "architectures"),
        (b'{"architectures": "Qwen"}', "architectures"),
        (b'{"architectures": [3]}', "architectures"),
        (b'{"architectures": ["\xff"]}', "no UTF-8 at byte 20"),
        (b'{"a": NaN, "architectures": ["X"]}', "NaN"),
        (b'{"a": ' + b"9" * 5000 + b', "architectures": ["X"]}', "no valid JSON"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_malformed_config_is_named(folder: Path, text: bytes, message: str) -> None:
    (folder / "config.json").write_bytes(text)
    with pytest.raises(CheckpointMalformed, match=message) as found:
        check_config(folder)
    assert "config.json" in str(found.value)


def test_what_is_missing_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointMissing, match=r"config\.json is not there"):
        check_config(folder)
    for check in (check_config, check_weights):
        with pytest.raises(CheckpointMissing, match="is the checkpoint's volume mounted"):
            check(folder / "absent")
        with pytest.raises(CheckpointMissing, match="is no folder"):
            check(folder / ONE)
        with pytest.raises(CheckpointMissing, match="can't be looked at"):
            check(folder / ONE / "below")
    for file in (ONE, TWO, checkpoint.INDEX):
        (folder / file).unlink()
    with pytest.raises(CheckpointMissing, match=r"neither .*index\.json nor any"):
        check_weights(folder)


@pytest.mark.parametrize("name", ["config.json", checkpoint.INDEX, ONE])
def test_what_is_no_file_is_refused_without_waiting(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointMalformed, match="no regular file"):
        (check_config if name == "config.json" else check_weights)(folder)


# The index


def test_an_absent_shard_is_named(folder: Path) -> None:
    (folder / TWO).unlink()
    with pytest.raises(CheckpointIndexMissingShard, match=f"names {TWO}"):
        check_weights(folder)
    (folder / TWO).symlink_to("blobs/gone")
    with pytest.raises(CheckpointIndexMissingShard, match=TWO):
        check_weights(folder)
    (folder / TWO).unlink()
    (folder / checkpoint.INDEX).unlink()
    with pytest.raises(CheckpointIndexMissingShard, match=f"{TWO} is not there; 1 of 2"):
        check_weights(folder)


@pytest.mark.parametrize(
    "file",
    ["../x", "a/../../x", "/etc/passwd", "", ".", "..", "a\0b", "x" * 256, "\ud800", 3, None, ["x"]],
)
def test_an_index_that_leaves_the_folder_is_refused(folder: Path, file: object) -> None:
    write_index(folder, {"a": ONE, "evil": file})
    with pytest.raises(CheckpointMalformed, match="'evil'"):
        check_weights(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_map_is_refused(folder: Path, weight_map: object) -> None:
    write_index(folder, weight_map)
    with pytest.raises(CheckpointMalformed, match="weight_map"):
        check_weights(folder)


def test_an_index_that_places_a_tensor_wrongly_is_refused(folder: Path) -> None:
    write_index(folder, {"a": ONE, "c": ONE})
    with pytest.raises(CheckpointMalformed, match=f"{ONE} has no tensor 'c'"):
        check_weights(folder)


# Shards


@pytest.mark.parametrize("cut", [0, 7, 8, 20, len(SHARD_ONE) - 77, len(SHARD_ONE) - 30, len(SHARD_ONE) - 1])
def test_a_truncated_shard_is_named(folder: Path, cut: int) -> None:
    (folder / ONE).write_bytes(SHARD_ONE[:cut])
    with pytest.raises(CheckpointTruncated, match=ONE):
        check_weights(folder)


def test_a_truncation_names_the_tensor_and_the_missing_bytes(folder: Path) -> None:
    (folder / ONE).write_bytes(SHARD_ONE[:-10])
    with pytest.raises(CheckpointTruncated, match=r"has 66 data bytes; 10 of tensor 'b' at \[64, 76\) are missing"):
        check_weights(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SHARD_ONE + b"x", "end at data byte 76, the file has 77"),
        (struct.pack("<Q", MAX_HEADER + 1) + b"{}", "claims 100000001 bytes"),
        (b"<!DOCTYPE html>", "claims"),
        (tensor_file({"a": entry("F32", [2], 4)}, 12), "'a' begins at data byte 4 and leaves a gap after byte 0"),
        (tensor_file({"a": entry("U8", [8], 0), "b": entry("U8", [8], 4)}, 12), "'b' .* overlaps the tensor .* byte 8"),
        (tensor_file({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}}, 4), "unknown dtype 'F33'"),
        (tensor_file({"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, 4), "unknown dtype"),
        (tensor_file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, 4), "has 8 bytes, data_offsets"),
        (tensor_file({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, 4), "no list of sizes"),
        (tensor_file({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4), "no list of sizes"),
        (tensor_file({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, 4), "no list of sizes"),
        (tensor_file({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}}, 4), "no list of sizes"),
        (tensor_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, 4), "run backwards"),
        (tensor_file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4), "no pair"),
        (tensor_file({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, 1), "no whole bytes"),
        (tensor_file({"a": {"dtype": "U8", "shape": [2**62, 2**62, 0], "data_offsets": [0, 0]}}, 0), "beyond 64 bits"),
        (tensor_file({"a": [1]}, 0), "entry is no object"),
        (tensor_file({"a": {"dtype": "U8", "shape": [0]}}, 0), "'a': no data_offsets"),
        (tensor_file({"a": {**entry("U8", [4], 0), "strides": [1]}}, 4), "'a': unknown key 'strides'"),
        (tensor_file({"a": entry("U8", [4], 0) | {"data_offsets": [0, 2**70]}}, 4), "no pair"),
        (tensor_file({"\ud800": entry("U8", [0], 0)}, 0), "no Unicode text"),
        (tensor_file({}, 0, metadata={"a": 1}), "__metadata__"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 3) + b"\xff{}", "no UTF-8"),
        (struct.pack("<Q", 15) + b'{"a":{},"a":{}}', "'a' comes twice"),
        (struct.pack("<Q", 8) + b'{"a":-0}', "-0 is no integer"),
    ],
)
def test_a_malformed_shard_is_named(folder: Path, content: bytes, message: str) -> None:
    (folder / checkpoint.INDEX).unlink()
    (folder / ONE).write_bytes(content)
    with pytest.raises(CheckpointMalformed, match=message) as found:
        check_weights(folder)
    assert ONE in str(found.value)


def test_tensors_may_come_in_any_order_and_sub_byte_types_may_fill_bytes() -> None:
    text = json.dumps({"b": entry("U8", [2], 3), "a": {"dtype": "F4", "shape": [6], "data_offsets": [0, 3]}}).encode()
    header = check_header(text, LENGTH_BYTES + len(text) + 5, "x")
    assert [(t.name, t.dtype, t.shape, t.begin, t.end) for t in header.tensors] == [
        ("a", "F4", (6,), 0, 3),
        ("b", "U8", (2,), 3, 5),
    ]
    assert (header.data_start, header.data_bytes) == (LENGTH_BYTES + len(text), 5)


def test_a_problem_can_be_made_of_every_error(folder: Path) -> None:
    """Messages travel as JSON to the operator, also when a name on disk is no text."""
    odd = Path(os.fsdecode(os.fsencode(folder) + b"/\xff.safetensors"))
    odd.write_bytes(b"")
    (folder / checkpoint.INDEX).unlink()
    for file in (ONE, TWO):
        (folder / file).unlink()
    with pytest.raises(CheckpointTruncated) as found:
        check_weights(folder)
    assert found.value.problem().to_json()


def test_every_dtype_of_the_format_has_its_size_in_bits() -> None:
    """As in safetensors 0.8; a new one is refused by name until somebody has said here how large it is."""
    sizes: dict[int, list[str]] = {}
    for dtype, bits in BITS.items():
        sizes.setdefault(bits, []).append(dtype)
    assert {bits: sorted(names) for bits, names in sizes.items()} == {
        4: ["F4"],
        6: ["F6_E2M3", "F6_E3M2"],
        8: ["BOOL", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0", "I8", "U8"],
        16: ["BF16", "F16", "I16", "U16"],
        32: ["F32", "I32", "U32"],
        64: ["C64", "F64", "I64", "U64"],
    }
    for dtype in BITS:
        text = json.dumps({"a": entry(dtype, [8, 3], 0), "scalar": entry("F64", [], BITS[dtype] * 3)}).encode()
        assert len(check_header(text, LENGTH_BYTES + len(text) + BITS[dtype] * 3 + 8, "x").tensors) == 2


def test_the_hugging_face_cache_is_a_folder_of_links(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("cache")
    (cache / "blobs").mkdir()
    (cache / "snapshots/r1").mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(cache / f"blobs/{number}")
        (cache / "snapshots/r1" / file.name).symlink_to(f"../../blobs/{number}")
    assert check_weights(cache / "snapshots/r1").tensors == 4


def test_a_header_of_100_000_tensors_is_checked() -> None:
    """Its time is measured elsewhere; here, that nothing grows with the square of their number."""
    entries = {f"layers.{i}.weight": entry("BF16", [4], 8 * i) for i in range(100_000)}
    text = json.dumps(entries).encode()
    header = check_header(text, LENGTH_BYTES + len(text) + 800_000, "x")
    assert header.tensors[99_999].begin == 799_992
