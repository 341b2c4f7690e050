"""Permutation maps: few runs for what engines do to tensors, and refusals that change nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.delta.gather import Shard, gather, whole
from flashboot_agent.delta.permutation import Kept, PermutationMap, Run, Tensor
from flashboot_agent.delta.tags import DERIVED, KEPT, Tags
from tests.loads import LAYOUT, Part, Storages, Zeros, map_of, written

ALL = slice(None)
MATRIX = Tensor("w", "bfloat16", (8, 6))


@pytest.mark.parametrize(
    ("tensors", "storages", "runs"),
    [
        pytest.param([MATRIX], [[Part(0, (ALL, ALL))]], [Run(0, 0, 0, 96)], id="whole"),
        pytest.param([MATRIX], [[Part(0, (slice(4, 8), ALL))]], [Run(0, 0, 48, 48)], id="rows"),
        pytest.param([MATRIX], [[Part(0, (ALL, slice(3, 6)))]], [Run(0, 0, 6, 6, ((8, 12),))], id="columns"),
        pytest.param(
            [MATRIX], [[Part(0, (ALL, ALL), transposed=True)]], [Run(0, 0, 0, 2, ((6, 2), (8, 12)))], id="transposed"
        ),
        pytest.param(
            [Tensor("e", "bfloat16", (5, 4, 6))],
            [[Part(0, (slice(1, 5), ALL, slice(0, 3)))]],
            [Run(0, 0, 48, 6, ((16, 12),))],
            id="columns of experts, whose rows are at equal steps",
        ),
        pytest.param(
            [Tensor("e", "bfloat16", (5, 4, 6))],
            [[Part(0, (slice(1, 5), slice(0, 2), slice(0, 3)))]],
            [Run(0, 0, 48, 6, ((4, 48), (2, 12)))],
            id="a box",
        ),
        pytest.param([MATRIX], [[Part(0, (slice(2, 3), ALL))] * 3], [Run(0, 0, 24, 12, ((3, 0),))], id="repeated"),
        pytest.param(
            [Tensor("q", "float32", (2, 2)), Tensor("k", "float32", (1, 2))],
            [[Part(0, (ALL, ALL)), Part(1, (ALL, ALL)), Zeros(1, 4)]],
            [Run(0, 0, 0, 16), Run(16, 1, 0, 8)],
            id="fused and padded",
        ),
    ],
)
def test_what_engines_do_to_tensors_is_few_runs(tensors: list[Tensor], storages: Storages, runs: list[Run]) -> None:
    assert list(map_of(tensors, storages).runs) == runs


def test_what_no_tensor_gives_is_kept() -> None:
    made = map_of([MATRIX], [[Zeros(2, 2), Part(0, (ALL, ALL)), Zeros(1, 2)]])
    assert made.kept == (Kept(0, 4), Kept(100, made.arena_bytes))
    assert made.needed == {"w"}


# What is no copy ------------------------------------------------------------------------------------------------


def seen(tags: Tags, change: Any) -> list[Any]:
    return [change(tags.values(number, 0)) for number in range(tags.passes)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda bits: bits + 1, id="added to"),
        pytest.param(lambda bits: bits * 3, id="scaled"),
        pytest.param(lambda bits: bits.astype(np.uint32) << 16, id="cast to a wider type"),
        pytest.param(lambda bits: bits.view(np.uint8), id="halves"),
        pytest.param(lambda bits: np.repeat(bits.max(), 4), id="reduced"),
    ],
)
def test_what_is_derived_is_found_out(change: Any) -> None:
    tags = Tags([Tensor("w", "bfloat16", (300, 300))])
    _, derived = tags.runs(seen(tags, change), 0)
    assert derived


def test_an_element_is_a_copy_a_constant_or_derived() -> None:
    tags = Tags([Tensor("a", "bfloat16", (3,)), Tensor("b", "bfloat16", (100_000,))])
    one = [
        np.array([values[7], 5, dice], np.uint16)
        for number, dice in zip(range(tags.passes), (11, 12, 13), strict=True)
        for values in [tags.values(number, 1)]
    ]
    tensors, sources = tags.origins(one)
    assert tensors.tolist() == [1, KEPT, DERIVED]
    assert sources[0] == 14


def test_elements_have_as_many_digits_as_the_narrowest_dtype_needs() -> None:
    assert Tags([Tensor("a", "float32", (70_000,))]).passes == 2
    assert Tags([Tensor("a", "bfloat16", (70_000,))]).passes == 3
    assert Tags([Tensor("a", "float32", (70_000,)), Tensor("b", "int8", (1,))]).passes == 4


@pytest.mark.parametrize("dtype", ["bool", "complex64", "no such"])
def test_elements_that_can_not_be_tagged_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(BadRequest, match=f"odd: elements of {dtype} can't be traced; use the converter"):
        Tags([Tensor("odd", dtype, (3,))])


# Documents ------------------------------------------------------------------------------------------------------


def document(**changes: Any) -> bytes:
    fields = {
        "schemaVersion": 1,
        "layoutDigest": LAYOUT,
        "arenaBytes": 100,
        "tensors": [["w", "bfloat16", [8, 6]]],
        "runs": [[0, 0, 0, 6, [[8, 12]]]],
        "kept": [[48, 100]],
    }
    return json.dumps(fields | changes).encode()


def test_a_document_is_read() -> None:
    assert PermutationMap.from_bytes(document()).runs == (Run(0, 0, 0, 6, ((8, 12),)),)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schemaVersion": 2}, "schemaVersion"),
        ({"layoutDigest": "md5:0"}, "layoutDigest"),
        ({"extra": 1}, "extra"),
        ({"runs": [[0, 0, 0, 0, []]]}, "runs"),
        ({"runs": [[0, 0, 0, 6, [[-8, 12]]]]}, "runs"),
        ({"runs": [[0, 0, 0, 1, [[1, 0]] * 9]]}, "runs"),
        ({"tensors": [["w", "bool", [8, 6]]]}, "elements of bool"),
        ({"tensors": [["w", "bfloat16", [8, 6]]] * 2}, "two tensors are named w"),
        ({"runs": [[0, 1, 0, 6, [[8, 12]]]]}, "tensor 1 of 1"),
        ({"runs": [[0, 0, 8, 6, [[8, 12]]]]}, "reads bytes 8 to 98 of w, which has 96"),
        ({"runs": [[0, 0, 0, 6, [[8, -12]]]]}, "reads bytes -84 to 6 of w"),
        ({"kept": [[47, 100]]}, "byte 47 of the arena is covered twice"),
        ({"kept": [[50, 100]]}, "byte 48 of the arena is covered by nothing"),
        ({"kept": [[48, 99]]}, "byte 99 of the arena is covered by nothing"),
        ({"kept": [[48, 101]]}, "byte 100 of the arena is covered twice"),
    ],
)
def test_a_document_that_is_wrong_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        PermutationMap.from_bytes(document(**changes))


# Shards ---------------------------------------------------------------------------------------------------------

DATA = bytes(range(96))


@pytest.mark.parametrize(
    ("name", "shard", "says"),
    [
        ("v", Shard((0, 0), (8, 6), DATA), "v: the permutation map knows no such tensor"),
        ("w", Shard((1, 0), (8, 6), DATA), r"w: a shard of \(8, 6\) at \(1, 0\) is no part of \(8, 6\)"),
        ("w", Shard((-1, 0), (8, 6), DATA), "is no part of"),
        ("w", Shard((0,), (8,), DATA[:16]), "is no part of"),
        ("w", Shard((0, 0), (8, 6), np.zeros((6, 8), np.uint16).T), "w: a shard must be dense memory"),
        ("w", Shard((0, 0), (8, 3), DATA), r"w: a shard of \(8, 3\) in bfloat16 has 48 bytes, not 96"),
    ],
)
def test_a_shard_that_is_none_is_refused_before_a_byte_is_written(name: str, shard: Shard, says: str) -> None:
    made = map_of([MATRIX], [[Part(0, (ALL, ALL))]])
    arena = bytearray(made.arena_bytes)
    given = {"w": [whole(MATRIX, DATA)]}
    given.setdefault(name, []).append(shard)
    with pytest.raises(BadRequest, match=says):
        gather(made, given, memoryview(arena))
    assert not any(arena)


def test_memory_that_is_not_the_arenas_is_refused() -> None:
    made = map_of([MATRIX], [[Part(0, (ALL, ALL))]])
    with pytest.raises(BadRequest, match=f"writable memory of {made.arena_bytes - 1} was given"):
        gather(made, {}, memoryview(bytearray(made.arena_bytes - 1)))
    with pytest.raises(BadRequest, match="memory that can't be written was given"):
        gather(made, {}, memoryview(bytes(made.arena_bytes)))


def test_a_tensor_that_this_rank_needs_nothing_of_writes_nothing() -> None:
    other = Tensor("other", "float32", (2,))
    made = map_of([MATRIX, other], [[Part(0, (ALL, ALL))]])
    assert made.needed == {"w"}
    assert written(made, {"other": [whole(other, bytes(8))]}) == []
