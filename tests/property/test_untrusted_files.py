"""Whatever bytes a weight file, an index or an image has: it is accepted and true, or refused with a name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashboot_agent.core.checkpoint import INDEX, check_weights
from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import (
    CheckpointIndexMissingShard,
    CheckpointMalformed,
    CheckpointMissing,
    CheckpointTruncated,
    ImageDamaged,
)
from flashboot_agent.core.safetensors_header import BITS, LENGTH_BYTES, Header, check_header, header_length
from flashboot_agent.load.image import head, open_image
from flashboot_agent.load.plan import ALIGNMENT, Plan
from tests.checkpoints import entry, tensor_file
from tests.damage import Change, changes, mutated
from tests.images import image_bytes, manifest_for

CHECKPOINT = (CheckpointMalformed, CheckpointTruncated)
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARD_ONE = tensor_file(
    {"a": entry("BF16", [4, 8], 0), "b": entry("F32", [3], 64)}, bytes(range(76)), metadata={"format": "pt"}
)
SHARD_TWO = tensor_file({"c": entry("F8_E4M3", [5], 0), "empty": entry("I64", [0, 7], 5)}, bytes(range(5)))
IMAGE = image_bytes(bytes(range(256)) * 20)
FEW = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def accepted(content: bytes) -> Header | None:
    """The header, which then is true of the bytes; None when it was refused with a name."""
    try:
        length = header_length(content[:LENGTH_BYTES], len(content), "file")
        header = check_header(content[LENGTH_BYTES : LENGTH_BYTES + length], len(content), "file")
    except CHECKPOINT as error:
        assert "file" in str(error)  # noqa: PT017 # success is allowed too: a mutation may hit only data
        return None
    end = 0
    for tensor in header.tensors:
        assert tensor.begin == end
        assert (tensor.end - tensor.begin) * 8 == math.prod(tensor.shape) * BITS[tensor.dtype]
        end = tensor.end
    assert header.data_start + end == len(content)
    return header


@FEW
@given(st.sampled_from([SHARD_ONE, SHARD_TWO]), changes)
def test_mutated_weight_files(shard: bytes, how: list[Change]) -> None:
    accepted(mutated(shard, how))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(BITS)) | json_values,
        "shape": st.lists(st.integers(-1, 2**65), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    },
    optional={"strides": json_values},
)


@FEW
@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), entries | json_values), st.integers(0, 40))
def test_any_json_header(header: dict[str, Any], data: int) -> None:
    accepted(tensor_file(header, data))


@given(st.binary(max_size=100))
def test_any_bytes(content: bytes) -> None:
    accepted(content)


@given(st.lists(st.tuples(st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 5), max_size=3)), max_size=12))
def test_a_sound_file_is_accepted_and_laid_out_without_overlap(tensors: list[tuple[str, list[int]]]) -> None:
    items: dict[str, Any] = {}
    end = 0
    for number, (dtype, shape) in enumerate(tensors):
        sizes = [*shape, 8]  # whole bytes of any dtype
        items[f"t{number}"] = entry(dtype, sizes, end)
        end = items[f"t{number}"]["data_offsets"][1]
    header = accepted(tensor_file(items, end))
    assert header is not None
    laid = Plan([("file", header)])
    at = 0
    for tensor in laid.tensors:
        assert tensor.offset % ALIGNMENT == 0
        assert tensor.offset >= at
        at = tensor.offset + tensor.nbytes
    assert at <= laid.nbytes < at + ALIGNMENT
    assert {tensor.name for tensor in laid.tensors} == items.keys()


@FEW
@given(
    index=st.binary(max_size=80)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(
        st.sampled_from(["a", "b", "c", "empty", "d"]),
        st.sampled_from([ONE, TWO, "../x", "/x", "sub/../.."]) | json_values,
    ).map(lambda placed: json.dumps({"weight_map": placed}).encode())
)
def test_any_index(tmp_path: Path, index: bytes) -> None:
    (tmp_path / ONE).write_bytes(SHARD_ONE)
    (tmp_path / TWO).write_bytes(SHARD_TWO)
    (tmp_path / INDEX).write_bytes(index)
    try:
        weights = check_weights(tmp_path)
    except (*CHECKPOINT, CheckpointIndexMissingShard, CheckpointMissing) as error:
        assert str(tmp_path) in str(error)  # noqa: PT017
    else:
        assert set(weights.files) <= {ONE, TWO}


@FEW
@given(changes, st.booleans())
def test_a_mutated_image_is_damaged_or_has_only_other_data(tmp_path: Path, how: list[Change], front: bool) -> None:
    """`front`: what is changed is the part that is not data, and its padding."""
    content = mutated(IMAGE[:65536], how) + IMAGE[65536:] if front else mutated(IMAGE, how)
    path = tmp_path / "image"
    path.write_bytes(content)
    try:
        with open_image(path) as image:
            header, documents = head(image.manifest, image.layout, image.digests)
            assert IMAGE[: len(header)] == header, "another image than was written is believed"
            assert IMAGE[4096 : 4096 + len(documents)] == documents
            assert len(content) == len(IMAGE)
    except ImageDamaged as error:
        assert f"{path}: " in str(error)  # noqa: PT017


@pytest.mark.parametrize("layout", [b"", b"x" * 100])
def test_every_cut_of_an_image_is_told(tmp_path: Path, layout: bytes) -> None:
    data = b"y" * 5000
    digests = chunk_digests(data)
    header, documents = head(manifest_for(len(data), root_digest(digests), layout=layout), layout, digests)
    path = tmp_path / "image"
    for content in (b"", header[:50], header, header + bytes(4096), header.ljust(4096, b"\0") + documents):
        path.write_bytes(content)
        with pytest.raises(ImageDamaged, match="image: at byte"), open_image(path):
            pass
