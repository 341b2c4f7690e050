"""PyTorch tensors of any kind are published as their bytes, and the example's two sides stay equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.safetensors_header import BITS
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.tensors import Box, TensorPlaces
from flashboot_agent.sync.torch_tensors import DTYPES, add_all, add_tensor, specs_of, tensor_bytes

REPO = Path(__file__).parents[2]


def test_each_dtype_has_the_name_and_the_size_that_safetensors_gives_it() -> None:
    from safetensors.torch import save

    for dtype, name in DTYPES.items():
        tensor = torch.empty(3, dtype=dtype)
        assert BITS[name] == 8 * tensor.element_size()
        text = save({"t": tensor})
        assert json.loads(text[8 : 8 + int.from_bytes(text[:8], "little")])["t"]["dtype"] == name


def test_bytes_in_the_order_of_rows_whatever_the_layout() -> None:
    odd = torch.tensor([0x7FC1, 0x8000, 0x0001, 0x3F80], dtype=torch.uint16).view(torch.bfloat16)
    assert bytes(tensor_bytes(odd)) == bytes.fromhex("c17f 0080 0100 803f")  # a NaN's payload, -0, a subnormal number
    grid = torch.arange(6, dtype=torch.int16).view(2, 3)
    assert bytes(tensor_bytes(grid.T)) == b"".join(n.to_bytes(2, "little") for n in (0, 3, 1, 4, 2, 5))
    assert bytes(tensor_bytes(grid[:, ::2])) == b"".join(n.to_bytes(2, "little") for n in (0, 2, 3, 5))
    assert bytes(tensor_bytes(torch.empty(0, 3))) == b""
    assert bytes(tensor_bytes(torch.tensor(1.0, requires_grad=True))) == bytes.fromhex("0000803f")
    with memoryview(tensor_bytes(grid)) as view:
        grid[0, 0] = 77
        assert view[0] == 77  # not a copy


def test_shards_are_told_by_their_offsets(tmp_path: Path) -> None:
    whole = {"w": torch.randn(8, 6).to(torch.bfloat16), "b": torch.randn(3)}
    places = TensorPlaces(specs_of(whole))
    with Publisher(tmp_path / "p", places) as publisher:
        publisher.begin(0)
        with pytest.raises(BadRequest, match="cast it"):
            add_tensor(publisher, "w", whole["w"].float())
        with pytest.raises(BadRequest, match="tell a shard's offsets"):
            add_tensor(publisher, "w", whole["w"][:, :2])
        add_tensor(publisher, "w", whole["w"][:, :2], (0, 0))
        add_tensor(publisher, "w", whole["w"][:, 2:], (0, 2))
        add_tensor(publisher, "b", whole["b"])
        by_shards = publisher.commit().result(30).digest
    with Publisher(tmp_path / "q", places) as publisher:
        publisher.begin(0)
        add_all(publisher, whole)
        assert publisher.commit().result(30).digest == by_shards
    assert [piece.nbytes for piece in places.pieces("w", Box((0, 2), (8, 4)))] == [8] * 8


def test_the_example_learns_and_its_sides_stay_equal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPO / "examples/rl/train.py", "--folder", tmp_path, "--steps", "12"],
        env={**os.environ, "PYTHONPATH": str(REPO / "agent")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert len(said["bytesSent"]) == 12
    assert said["rewards"][-1] > said["rewards"][0]
    assert sorted(path.name for path in (tmp_path / "published").iterdir() if path.name == "chain") == ["chain"]
