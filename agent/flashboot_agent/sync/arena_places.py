"""A trainer's tensors in the image of an engine's arena: versions of what replicas hold, published without an engine.

One of these per rank of the replicas: each has a permutation map, versions and a chain of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta import words
from flashboot_agent.delta.gather import Shard, gather
from flashboot_agent.delta.permutation import PermutationMap
from flashboot_agent.sync.tensors import Box, TensorSpec
from flashboot_agent.wire.layout import Layout

OF_TORCH: Final = {
    "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0", "int16": "I16",
    "uint16": "U16", "bfloat16": "BF16", "float16": "F16", "int32": "I32", "uint32": "U32", "float32": "F32",
    "int64": "I64", "uint64": "U64", "float64": "F64",
}  # fmt: skip
"""Dtypes of maps, as safetensors names them."""


class ArenaPlaces:
    """Places (sync/tensors.py) of a map."""

    subject: Literal["arena", "checkpoint"] = "arena"

    def __init__(self, permutation: PermutationMap, layout: Layout, base: memoryview | None) -> None:
        """`base`: any version of this arena, which has what no tensor gives; None for a ShardWriter, whose image the
        publisher has filled.

        Raises BadRequest when the three do not belong together."""
        if permutation.layout_digest != document_digest(layout.to_bytes()):
            raise BadRequest(f"the permutation map is of another layout, {permutation.layout_digest}")
        if base is not None and base.nbytes != permutation.arena_bytes:
            raise BadRequest(f"an arena of {base.nbytes} bytes, the map's have {permutation.arena_bytes}")
        self.content, self.nbytes = permutation.layout_digest, permutation.arena_bytes
        self.runs = words.of_layout(layout)
        self.tensors: Mapping[str, TensorSpec] = {
            tensor.name: TensorSpec(OF_TORCH[tensor.dtype], tensor.shape) for tensor in permutation.tensors
        }
        self._permutation, self._base = permutation, base

    def fill(self, image: memoryview) -> None:
        if self._base is None:
            raise BadRequest("a new image needs the base arena, for what no tensor gives: tables, padding")
        for begin, end in self._permutation.kept:
            image[begin:end] = self._base[begin:end]

    def write(self, name: str, box: Box, data: memoryview, image: memoryview) -> None:
        gather(self._permutation, {name: [Shard(box.offsets, box.shape, data)]}, image)

    def copy(self, name: str, old: memoryview, image: memoryview) -> None:
        for run in self._permutation.runs_of.get(name, []):
            image[run.arena : run.end] = old[run.arena : run.end]
