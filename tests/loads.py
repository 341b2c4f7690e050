"""A loader in numpy, for tests of permutation maps: storages that are made of parts of tensors, as an engine's are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from flashboot_agent.delta.gather import Shard, gather
from flashboot_agent.delta.permutation import ITEM_BYTES, PermutationMap, Tensor
from flashboot_agent.delta.tags import Tags

Array = npt.NDArray[Any]
LAYOUT = "sha256:" + "a" * 64


@dataclass(frozen=True)
class Part:
    """A box of a tensor, or its transpose."""

    tensor: int
    box: tuple[slice, ...]
    transposed: bool = False

    def of(self, values: Sequence[Array]) -> Array:
        cut = values[self.tensor][self.box]
        return (cut.T if self.transposed else cut).reshape(-1)


@dataclass(frozen=True)
class Zeros:
    """Padding."""

    count: int
    size: int

    def of(self, values: Sequence[Array]) -> Array:
        return np.zeros(self.count, f"u{self.size}")


Storages = Sequence[Sequence[Part | Zeros]]


def load(storages: Storages, values: Sequence[Array]) -> list[Array]:
    return [np.concatenate([part.of(values) for part in parts]) for parts in storages]


def places(storages: Storages, values: Sequence[Array]) -> tuple[list[int], int]:
    """Where each storage begins (multiples of 8), and the bytes of the arena."""
    begins, end = [], 0
    for storage in load(storages, values):
        begins.append(-(-end // 8) * 8)
        end = begins[-1] + storage.nbytes
    return begins, end + 3


def image(storages: Storages, values: Sequence[Array]) -> bytes:
    begins, nbytes = places(storages, values)
    arena = bytearray(nbytes)
    for begin, storage in zip(begins, load(storages, values), strict=True):
        arena[begin : begin + storage.nbytes] = storage.tobytes()
    return bytes(arena)


def map_of(tensors: Sequence[Tensor], storages: Storages) -> PermutationMap:
    """As a trace makes it."""
    tags = Tags(tensors)
    every = [
        [tags.values(number, index).reshape(tensor.shape) for index, tensor in enumerate(tensors)]
        for number in range(tags.passes)
    ]
    begins, nbytes = places(storages, every[0])
    runs = []
    for begin, *seen in zip(begins, *(load(storages, values) for values in every), strict=True):
        found, derived = tags.runs(seen, begin)
        assert not derived
        runs += found
    return PermutationMap.of_runs(LAYOUT, nbytes, tensors, runs)


def written(made: PermutationMap, shards: Mapping[str, Sequence[Shard]]) -> list[int]:
    """Which bytes of the arena they reach: those that come out the same whatever was there."""
    arenas = [bytearray([filler]) * made.arena_bytes for filler in (0, 255)]
    for arena in arenas:
        gather(made, shards, memoryview(arena))
    return [at for at, (one, other) in enumerate(zip(*arenas, strict=True)) if one == other]


def covered(made: PermutationMap) -> list[int]:
    """The bytes of its runs."""
    return [at for run in made.runs for at in range(run.arena, run.end)]


def random_values(tensors: Sequence[Tensor], seed: int) -> list[Array]:
    dice = np.random.default_rng(seed)
    return [
        np.frombuffer(dice.bytes(tensor.nbytes), f"u{ITEM_BYTES[tensor.dtype]}").reshape(tensor.shape)
        for tensor in tensors
    ]


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[slice, ...]:
    found = []
    for size in shape:
        begin = draw(st.integers(0, size - 1))
        found.append(slice(begin, draw(st.integers(begin + 1, size))))
    return tuple(found)


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Tensor], Storages]:
    dtypes = st.sampled_from(["float8_e4m3fn", "bfloat16", "float32", "int64"])
    shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)
    drawn = draw(st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=4))
    tensors = [Tensor(f"layer.{number}.weight", *each) for number, each in enumerate(drawn)]
    storages: list[list[Part | Zeros]] = []
    for number in draw(st.lists(st.integers(0, len(tensors) - 1), max_size=5)):
        alike = [each for each, tensor in enumerate(tensors) if tensor.dtype == tensors[number].dtype]
        parts: list[Part | Zeros] = []
        for each in draw(st.lists(st.sampled_from(alike), min_size=1, max_size=4)):
            parts.append(Part(each, draw(boxes(tensors[each].shape)), draw(st.booleans())))
            if draw(st.booleans()):
                parts.append(Zeros(draw(st.integers(1, 3)), ITEM_BYTES[tensors[number].dtype]))
        storages.append(parts)
    return tensors, storages


def shards_of(tensor: Tensor, values: Array, cuts: Sequence[int]) -> list[Shard]:
    """The tensor in boxes: cut once in each dimension, at these places."""
    found = [Shard((), (), None)]
    for size, cut in zip(tensor.shape, cuts, strict=True):
        found = [
            Shard((*one.begin, begin), (*one.shape, end - begin), None)
            for one in found
            for begin, end in ((0, cut), (cut, size))
        ]
    return [one._replace(data=_cut(values, one)) for one in found if math.prod(one.shape)]


def _cut(values: Array, box: Shard) -> bytes:
    ranges = zip(box.begin, box.shape, strict=True)
    return values[tuple(slice(begin, begin + size) for begin, size in ranges)].tobytes()
