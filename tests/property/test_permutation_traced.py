"""A map that was traced by tags makes what the loader makes, of whole tensors and of shards, and is its document."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.delta import gather as gathering
from flashboot_agent.delta import tags
from flashboot_agent.delta.gather import Span, gather, joined, whole
from flashboot_agent.delta.permutation import PermutationMap, Tensor
from tests.loads import Storages, image, loads, map_of, random_values, shards_of

seeds = st.integers(0, 1 << 30)


@given(loads(), seeds)
def test_the_map_makes_what_the_loader_makes(case: tuple[list[Tensor], Storages], seed: int) -> None:
    tensors, storages = case
    made = map_of(tensors, storages)
    values = random_values(tensors, seed)
    arena = bytearray(made.arena_bytes)
    given_all = {tensor.name: [whole(tensor, each.tobytes())] for tensor, each in zip(tensors, values, strict=True)}
    spans = gather(made, given_all, memoryview(arena))
    assert bytes(arena) == image(storages, values)
    assert spans == joined(Span(run.arena, run.end) for run in made.runs)
    assert joined([*spans, *(Span(*each) for each in made.kept)]) == [Span(0, made.arena_bytes)]


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
    spans: list[Span] = []
    for name, shard in data.draw(st.permutations(every)):
        before = bytes(arena)
        written = gather(made, {name: [shard]}, memoryview(arena))
        untouched = _outside(written, made.arena_bytes)
        assert all(before[begin:end] == arena[begin:end] for begin, end in untouched)
        spans += written
    assert bytes(arena) == image(storages, values)
    assert sum(end - begin for begin, end in spans) == sum(run.nbytes for run in made.runs), "each byte once"
    assert joined(spans) == joined(Span(run.arena, run.end) for run in made.runs)


def _outside(spans: list[Span], nbytes: int) -> list[Span]:
    ends = [0, *(span.end for span in spans)]
    begins = [*(span.begin for span in spans), nbytes]
    return [Span(begin, end) for begin, end in zip(ends, begins, strict=True)]


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
        bent.setattr(gathering, "GRAINS", step)
        made = map_of(tensors, storages)
        arena = bytearray(made.arena_bytes)
        for tensor, each in zip(tensors, values, strict=True):
            halves = shards_of(tensor, each, [size // 2 for size in tensor.shape])
            gather(made, {tensor.name: halves}, memoryview(arena))
    assert bytes(arena) == image(storages, values)
