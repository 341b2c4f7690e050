"""From a trainer's tensors, whole or in shards, to an arena's bytes by a permutation map: no engine, no full tensors.

Everything that is given is checked before the first byte is written. A trainer's process that has shards only writes
what these reach, and says which bytes those are; those of all processes together are everything but what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.delta.permutation import ITEM_BYTES, PermutationMap, Run, Tensor

Array = npt.NDArray[Any]

GRAINS: Final = 1 << 20
"""Pieces of shards that are looked up together: bounds the memory beside the arena's."""


class Shard(NamedTuple):
    """A box of one tensor, dense and row by row."""

    begin: tuple[int, ...]
    """Of the box in the tensor, per dimension."""
    shape: tuple[int, ...]
    data: Any
    """Whatever has a buffer: bytes, memoryview, numpy array."""


class Span(NamedTuple):
    begin: int
    end: int


def whole(tensor: Tensor, data: Any) -> Shard:
    return Shard((0,) * len(tensor.shape), tensor.shape, data)


def gather(permutation: PermutationMap, shards: Mapping[str, Iterable[Shard]], arena: memoryview) -> list[Span]:
    """Write what the shards reach into `arena`, and return which bytes these are, in order and not touching each other.

    Raises BadRequest, naming the tensor; then nothing was written."""
    ready = [_checked(permutation, name, shard) for name, all_of in shards.items() for shard in all_of]
    memory = np.frombuffer(arena, np.uint8)
    if len(memory) != permutation.arena_bytes or not memory.flags.writeable:
        raise BadRequest(f"the arena has {permutation.arena_bytes} bytes; writable memory of {len(memory)} was given")
    spans: list[Span] = []
    for tensor, shard, data in ready:
        if not data.size:
            continue
        for run in permutation.runs_of.get(tensor.name, []):
            if shard.shape == tensor.shape:
                seen = _read(run, data)
                memory[run.arena : run.end].reshape(seen.shape)[...] = seen
                spans.append(Span(run.arena, run.end))
            else:
                spans += _from_box(run, tensor, shard, data, memory)
    return joined(spans)


def joined(spans: Iterable[Span]) -> list[Span]:
    """Sorted; those that touch or overlap are one."""
    result: list[Span] = []
    for span in sorted(spans):
        if result and span.begin <= result[-1].end:
            result[-1] = Span(result[-1].begin, max(span.end, result[-1].end))
        else:
            result.append(span)
    return result


def _checked(permutation: PermutationMap, name: str, shard: Shard) -> tuple[Tensor, Shard, Array]:
    """The shard with its tensor and its bytes."""
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
        data = np.frombuffer(memoryview(shard.data).cast("B"), np.uint8) if elements else np.empty(0, np.uint8)
    except TypeError as error:
        raise BadRequest(f"{name}: a shard must be dense memory: {error}") from error
    wanted = elements * ITEM_BYTES[tensor.dtype]
    if data.size != wanted:
        raise BadRequest(f"{name}: a shard of {shard.shape} in {tensor.dtype} has {wanted} bytes, not {data.size}")
    return tensor, shard, data


def _read(run: Run, data: Array) -> Array:
    """The bytes of a run, looked at in a whole tensor."""
    counts = [count for count, _ in run.loops]
    steps = [step for _, step in run.loops]
    return np.lib.stride_tricks.as_strided(
        data[run.source :], (*counts, run.width), (*steps, 1), writeable=False, subok=False
    )


def _from_box(run: Run, tensor: Tensor, shard: Shard, data: Array, memory: Array) -> Iterator[Span]:
    """In grains: the largest pieces that neither the run's copies nor the box's rows cut."""
    size = ITEM_BYTES[tensor.dtype]
    grain = math.gcd(run.width, run.source, *(step for _, step in run.loops), *_edges(tensor, shard, size))
    per_copy = run.width // grain
    total = run.nbytes // grain
    rows, target = data.reshape(-1, grain), memory[run.arena : run.end].reshape(-1, grain)
    for begin in range(0, total, GRAINS):
        numbers = np.arange(begin, min(begin + GRAINS, total))
        places = _sources(run, numbers // per_copy) + numbers % per_copy * grain
        inside, local = _in_box(places, tensor, shard, size)
        hit = numbers[inside]
        target[hit] = rows[local[inside] // grain]
        yield from _spans(hit, run.arena, grain)


def _edges(tensor: Tensor, shard: Shard, size: int) -> tuple[int, int, int]:
    """Of the innermost dimension that is cut: the box's begin and length in it, and all of it, in bytes."""
    at = max(each for each, mine in enumerate(shard.shape) if mine != tensor.shape[each])
    below = size * math.prod(tensor.shape[at + 1 :])
    return shard.begin[at] * below, shard.shape[at] * below, tensor.shape[at] * below


def _sources(run: Run, copies: Array) -> Array:
    """Byte of the tensor at which each of these copies begins."""
    places = np.full(len(copies), run.source, np.int64)
    for count, step in reversed(run.loops):
        places += copies % count * step
        copies = copies // count
    return places


def _in_box(places: Array, tensor: Tensor, shard: Shard, size: int) -> tuple[Array, Array]:
    """Which bytes of the tensor are in the box, and which of the box's bytes these are."""
    inside = np.ones(len(places), bool)
    rest, local, scale = places // size, places % size, size
    for begin, mine, all_of in zip(*map(reversed, (shard.begin, shard.shape, tensor.shape)), strict=True):
        at = rest % all_of - begin
        rest = rest // all_of
        inside &= (at >= 0) & (at < mine)
        local = local + at * scale
        scale *= mine
    return inside, local


def _spans(grains: Array, start: int, grain: int) -> Iterator[Span]:
    if not len(grains):
        return
    breaks = np.flatnonzero(np.diff(grains) != 1) + 1
    first = np.concatenate(([0], breaks))
    last = np.concatenate((breaks, [len(grains)])) - 1
    for begin, end in zip(grains[first].tolist(), grains[last].tolist(), strict=True):
        yield Span(start + begin * grain, start + (end + 1) * grain)
