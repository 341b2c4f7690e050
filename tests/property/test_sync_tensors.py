"""Shards of tensors find their bytes in the image, and a version is whole only when all of them did."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.delta.source import CheckpointSource, open_source
from flashboot_agent.sync.draft import Draft
from flashboot_agent.sync.tensors import Box, TensorPlaces, TensorSpec
from tests.checkpoints import entry, tensor_file
from tests.syncs import SPECS, first, image


def add(draft: Draft, name: str, box: Box | None, nbytes: int) -> None:
    draft.add(name, draft.checked(name, box, nbytes))


@st.composite
def boxes(draw: st.DrawFn) -> tuple[TensorSpec, Box]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    sizes = tuple(draw(st.integers(0, size - begin)) for size, begin in zip(shape, offsets, strict=True))
    return TensorSpec("I16", shape), Box(offsets, sizes)


@given(boxes())
def test_pieces_are_what_slicing_takes(drawn: tuple[TensorSpec, Box]) -> None:
    spec, box = drawn
    places = TensorPlaces({"a": TensorSpec("U8", (3,)), "t": spec})
    whole = np.arange(prod(spec.shape), dtype="<i2").reshape(spec.shape)
    shard = whole[tuple(slice(b, b + n) for b, n in zip(box.offsets, box.shape, strict=True))].tobytes()
    memory = bytearray(places.nbytes)
    everything = Box((0,) * len(spec.shape), spec.shape)
    for piece in places.pieces("t", everything):
        memory[piece.image : piece.image + piece.nbytes] = whole.tobytes()[piece.data : piece.data + piece.nbytes]
    pieces = list(places.pieces("t", box))
    assert b"".join(memory[each.image : each.image + each.nbytes] for each in pieces) == shard
    assert [each.data for each in pieces] == [sum(e.nbytes for e in pieces[:at]) for at in range(len(pieces))]


@given(st.data())
def test_a_grid_of_shards_in_any_order_is_whole_and_any_one_less_is_not(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    cuts = [sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    grid = [Box((), ())]
    for dimension in cuts:
        grid = [Box((*box.offsets, a), (*box.shape, b - a)) for box in grid for a, b in pairwise(dimension)]
    order = data.draw(st.permutations(grid))
    draft = Draft(4, {"t": TensorSpec("BF16", shape)})
    for box in order[:-1]:
        add(draft, "t", box, 2 * box.elements)
    with pytest.raises(BadRequest, match=r"version 4: not all was added: t \("):
        draft.require_whole()
    add(draft, "t", order[-1], 2 * order[-1].elements)
    draft.require_whole()
    with pytest.raises(BadRequest, match="was added already"):
        add(draft, "t", order[0], 2 * order[0].elements)


def test_the_image_is_that_of_a_checkpoint_with_these_tensors(tmp_path: Path) -> None:
    version, entries, data = first(), {}, b""
    for name, spec in SPECS.items():
        entries[name] = entry(spec.dtype, list(spec.shape), len(data))
        data += version[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(tensor_file(entries, data))
    places = TensorPlaces(SPECS)
    with open_source(path) as source:
        assert isinstance(source, CheckpointSource)
        assert (source.subject, source.content, source.nbytes, source.runs) == (
            places.subject,
            places.content,
            places.nbytes,
            places.runs,
        )
        assert bytes(source.view(0, source.nbytes)) == image(version)


@pytest.mark.parametrize(
    ("name", "box", "nbytes", "says"),
    [
        ("other", None, 2, "no tensor other"),
        ("t", None, 23, "23 bytes, 24 are needed"),
        ("t", Box((0,), (3,)), 6, "no part of it"),
        ("t", Box((0, 0), (3, 5)), 30, "no part of it"),
        ("t", Box((-1, 0), (1, 4)), 8, "no part of it"),
        ("packed", Box((0,), (2,)), 1, "no whole bytes"),
        ("kept", None, 2, "kept as it was"),
    ],
)
def test_what_does_not_fit_is_told(name: str, box: Box | None, nbytes: int, says: str) -> None:
    specs = {"t": TensorSpec("BF16", (3, 4)), "packed": TensorSpec("F4", (4,)), "kept": TensorSpec("BF16", ())}
    draft = Draft(9, specs)
    draft.keep("kept")
    with pytest.raises(BadRequest, match=f"version 9: .*{says}"):
        add(draft, name, box, nbytes)
    add(draft, "packed", None, 2)
    with pytest.raises(BadRequest, match="add the rest"):
        draft.keep("packed")


@pytest.mark.parametrize(
    ("specs", "says"),
    [
        ({}, "no tensors"),
        ({"t": TensorSpec("BF16", (0, 3))}, "no tensors"),
        ({"t": TensorSpec("BF17", (3,))}, "which safetensors has not"),
        ({"t": TensorSpec("F4", (3,))}, "no whole bytes"),
        ({"t": TensorSpec("BF16", (-1, -3))}, "no whole bytes"),
    ],
)
def test_tensors_that_are_no_image_are_refused(specs: dict[str, TensorSpec], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        TensorPlaces(specs)
