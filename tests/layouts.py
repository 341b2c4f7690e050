"""A small layout with one of everything, for tests, and its document taken apart and put together."""

from __future__ import annotations

import struct
import zlib
from typing import Any

from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_bytes import PREFIX
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView

PARAMETER = "torch.nn.parameter.Parameter"


def small(**changes: Any) -> Layout:
    """Two segments, a tie, two views of one storage, a private copy, a tensor without elements. `changes`: fields."""
    fields: dict[str, Any] = {
        "identity": {"model": "small", "dtype": "bfloat16"},
        "arena_bytes": 12288,
        "segments": [Segment(0, 4096), Segment(4096, 8192)],
        "storages": [Storage(0, 60), Storage(512, 0), Storage(4096, 5000), Storage(9216, 32, "runtime")],
        "tensors": [
            TensorView(0, 0, (3, 5), (5, 1), "float32", parameter=True, cls=PARAMETER, attributes={"ue8m0": True}),
            TensorView(1, 0, (0, 7), (7, 1), "float32", parameter=False, cls="torch.Tensor"),
            TensorView(2, 0, (50, 50), (1, 50), "bfloat16", parameter=True, cls=PARAMETER),
            TensorView(2, 2400, (10,), (5,), "bfloat16", parameter=False, cls="torch.Tensor"),
            TensorView(3, 0, (), (), "int64", parameter=False, cls="torch.Tensor"),
        ],
        "bindings": [
            Binding("embed", "weight", "parameter", 0),
            Binding("layers.0", "nothing", "attribute", 1),
            Binding("layers.0.mlp", "weight", "parameter", 2),
            Binding("layers.0.mlp", "part", "attribute", 3),
            Binding("", "steps", "buffer_non_persistent", 4),
            Binding("head", "weight", "parameter", 0),
        ],
        "scalars": {"layers.0": {"padded": True, "scale": 0.5, "quant_method.block": None}, "layers.1": {"n": -3}},
        "deleted": {"layers.1": ["bias", "weight"]},
        "structure": "sha256:" + "0" * 64,
    }
    return Layout(**{**fields, **changes})


def plain(count: int, identity: dict[str, str], *, twice: bool = False) -> Layout:
    """Tensors by name and nothing else, as the public API seeds them. twice: each under two names."""
    views = [TensorView(n, 1, (7, 9), (9, 1), "bfloat16", parameter=True, cls=PARAMETER) for n in range(count)]
    bindings = [Binding(f"m{n}", "w", "parameter", n) for n in range(count)]
    return Layout(
        identity=identity,
        arena_bytes=512 * count,
        segments=[Segment(0, 512 * count)],
        storages=[Storage(512 * n, 512) for n in range(count)],
        tensors=views,
        bindings=[*bindings, *(Binding(f"ä{n}", "w", "parameter", n) for n in range(count * twice))],
    )


def parts(document: bytes) -> tuple[bytes, bytes]:
    """Head and tables."""
    head_bytes = PREFIX.unpack_from(document)[3]
    return document[PREFIX.size : PREFIX.size + head_bytes], document[PREFIX.size + head_bytes :]


def sealed(head: bytes, tables: bytes) -> bytes:
    """A document of these parts, whatever they are, under a right checksum."""
    rest = struct.pack("<II", len(head), len(tables)) + head + tables
    return small().to_bytes()[:12] + struct.pack("<I", zlib.crc32(rest)) + rest
