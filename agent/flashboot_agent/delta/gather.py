"""From a trainer's tensors, whole or in shards, to an arena's bytes by a permutation map: no engine, no full tensors.

Everything that is given is checked before the first byte is written, and only what the shards reach is: that of all
processes of a trainer together is everything but what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flashboot_agent import _native
from flashboot_agent.core.errors import BadRequest
from flashboot_agent.delta.cuts import Box, cuts
from flashboot_agent.delta.permutation import ITEM_BYTES, PermutationMap, Tensor


class Shard(NamedTuple):
    """A box of one tensor, dense and row by row."""

    begin: tuple[int, ...]
    """Of the box in the tensor, per dimension."""
    shape: tuple[int, ...]
    data: Any
    """Whatever has a buffer: bytes, memoryview, numpy array."""


def whole(tensor: Tensor, data: Any) -> Shard:
    return Shard((0,) * len(tensor.shape), tensor.shape, data)


def gather(permutation: PermutationMap, shards: Mapping[str, Iterable[Shard]], arena: memoryview) -> None:
    """Write what the shards reach into `arena`. Raises BadRequest, naming the tensor; then nothing was written."""
    ready = [_checked(permutation, name, shard) for name, all_of in shards.items() for shard in all_of]
    if arena.nbytes != permutation.arena_bytes or arena.readonly:
        what = "memory that can't be written" if arena.readonly else f"writable memory of {arena.nbytes}"
        raise BadRequest(f"the arena has {permutation.arena_bytes} bytes; {what} was given")
    for tensor, box, data in ready:
        if not data.nbytes:
            continue
        for run in permutation.runs_of.get(tensor.name, []):
            for cut in cuts(run, tensor, box):
                _native.strided_copy(arena, data, cut.target, cut.source, cut.width, cut.table())


def _checked(permutation: PermutationMap, name: str, shard: Shard) -> tuple[Tensor, Box, memoryview]:
    """The shard's tensor, place and bytes."""
    tensor = permutation.named.get(name)
    if tensor is None:
        raise BadRequest(f"{name}: the permutation map knows no such tensor")
    if not len(shard.begin) == len(shard.shape) == len(tensor.shape) or not all(
        0 <= begin <= begin + mine <= size
        for begin, mine, size in zip(shard.begin, shard.shape, tensor.shape, strict=True)
    ):
        raise BadRequest(f"{name}: a shard of {shard.shape} at {shard.begin} is no part of {tensor.shape}")
    elements = math.prod(shard.shape)
    try:
        data = memoryview(shard.data).cast("B") if elements else memoryview(b"")
    except TypeError as error:
        raise BadRequest(f"{name}: a shard must be dense memory: {error}") from error
    wanted = elements * ITEM_BYTES[tensor.dtype]
    if data.nbytes != wanted:
        raise BadRequest(f"{name}: a shard of {shard.shape} in {tensor.dtype} has {wanted} bytes, not {data.nbytes}")
    return tensor, Box(shard.begin, shard.shape), data
