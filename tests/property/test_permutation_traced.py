"""A map that was traced by tags makes what the loader makes, of whole tensors and of shards, and is its document."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.delta import tags
from flashboot_agent.delta.gather import Shard, gather, whole
from flashboot_agent.delta.permutation import PermutationMap, Tensor
from tests.loads import Storages, boxes, covered, image, loads, map_of, random_values, shards_of, written

seeds = st.integers(0, 1 << 30)


@given(loads(), seeds)
def test_the_map_makes_what_the_loader_makes(case: tuple[list[Tensor], Storages], seed: int) -> None:
    tensors, storages = case
    made = map_of(tensors, storages)
    values = random_values(tensors, seed)
    arena = bytearray(made.arena_bytes)
    given_all = {tensor.name: [whole(tensor, each.tobytes())] for tensor, each in zip(tensors, values, strict=True)}
    gather(made, given_all, memoryview(arena))
    assert bytes(arena) == image(storages, values)
    assert written(made, given_all) == covered(made)


@given(loads(), seeds, st.data())
def test_shards_together_make_what_whole_tensors_make(
    case: tuple[list[Tensor], Storages], seed: int, data: st.DataObject
) -> None:
    tensors, storages = case
    made = map_of(tensors, storages)
    values = random_values(tensors, seed)
    every = [
        (tensor.name, shard)
        for tensor, each in zip(tensors, values, strict=True)
        for shard in shards_of(tensor, each, [data.draw(st.integers(0, size)) for size in tensor.shape])
    ]
    arena = bytearray(made.arena_bytes)
    reached: list[int] = []
    for name, shard in data.draw(st.permutations(every)):
        gather(made, {name: [shard]}, memoryview(arena))
        reached += written(made, {name: [shard]})
    assert bytes(arena) == image(storages, values)
    assert sorted(reached) == covered(made), "each byte once"


@given(loads(), seeds, st.data())
def test_a_box_anywhere_reaches_what_comes_from_it_alone(
    case: tuple[list[Tensor], Storages], seed: int, data: st.DataObject
) -> None:
    tensors, storages = case
    made = map_of(tensors, storages)
    number = data.draw(st.integers(0, len(tensors) - 1))
    values, box = random_values(tensors, seed), data.draw(boxes(tensors[number].shape))
    marked = [np.zeros_like(each) for each in values]
    nothing = image(storages, marked)
    marked[number][box] = ~marked[number][box]
    shard = Shard(tuple(each.start for each in box), values[number][box].shape, values[number][box].tobytes())
    reached = written(made, {tensors[number].name: [shard]})
    pairs = zip(nothing, image(storages, marked), strict=True)
    assert reached == [at for at, (one, other) in enumerate(pairs) if one != other]
    arena, wanted = bytearray(made.arena_bytes), image(storages, values)
    gather(made, {tensors[number].name: [shard]}, memoryview(arena))
    assert all(arena[at] == wanted[at] for at in reached)


@given(loads())
def test_a_map_is_its_document(case: tuple[list[Tensor], Storages]) -> None:
    made = map_of(*case)
    assert PermutationMap.from_bytes(made.to_bytes()) == made


@given(loads(), seeds, st.integers(1, 9))
def test_in_whatever_parts_it_is_looked_at(case: tuple[list[Tensor], Storages], seed: int, step: int) -> None:
    tensors, storages = case
    values = random_values(tensors, seed)
    with pytest.MonkeyPatch.context() as bent:
        bent.setattr(tags, "STEP", step)
        made = map_of(tensors, storages)
        arena = bytearray(made.arena_bytes)
        for tensor, each in zip(tensors, values, strict=True):
            halves = shards_of(tensor, each, [size // 2 for size in tensor.shape])
            gather(made, {tensor.name: halves}, memoryview(arena))
    assert bytes(arena) == image(storages, values)
