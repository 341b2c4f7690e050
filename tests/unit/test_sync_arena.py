"""A trainer's shards become versions of an engine's arena by a permutation map, and a resident arena follows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.identity import document_digest
from flashboot_agent.core.safetensors_header import BITS
from flashboot_agent.delta.permutation import ITEM_BYTES, PermutationMap, Run, Tensor
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.sync.arena_places import OF_TORCH, ArenaPlaces
from flashboot_agent.sync.origin import DirectoryOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.shard_writer import ShardWriter
from flashboot_agent.sync.shared_images import SharedImages
from flashboot_agent.sync.storage_places import StoragePlaces, name_at
from flashboot_agent.sync.tensors import Box
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView
from tests.layouts import PARAMETER

NBYTES = 4096
LAYOUT = Layout(
    identity={"model": "small"},
    arena_bytes=NBYTES,
    segments=[Segment(0, NBYTES)],
    storages=[Storage(0, 96), Storage(512, 8), Storage(1024, 64)],
    tensors=[
        TensorView(0, 0, (6, 8), (8, 1), "bfloat16", parameter=True, cls=PARAMETER),
        TensorView(1, 0, (2,), (1,), "float32", parameter=True, cls=PARAMETER),
        TensorView(2, 0, (16,), (1,), "float32", parameter=False, cls="torch.Tensor"),
    ],
    bindings=[
        Binding("mlp", "weight", "parameter", 0),
        Binding("norm", "weight", "parameter", 1),
        Binding("rotary", "cos_sin_cache", "buffer", 2),
    ],
)
TENSORS = [Tensor("mlp.w", "bfloat16", (8, 6)), Tensor("norm.w", "float32", (2,))]
RUNS = [Run(0, 0, 0, 2, ((6, 2), (8, 12))), Run(512, 1, 0, 8)]
MAP = PermutationMap.of_runs(document_digest(LAYOUT.to_bytes()), NBYTES, TENSORS, RUNS)
TABLE = bytes(range(64))


def image(weight: np.ndarray[tuple[int, ...], np.dtype[np.uint16]], norm: bytes) -> bytearray:
    memory = bytearray(NBYTES)
    memory[:96] = weight.T.tobytes()
    memory[512:520] = norm
    memory[1024:1088] = TABLE
    return memory


def test_shards_of_a_trainer_are_versions_of_an_arena(tmp_path: Path) -> None:
    weight = np.arange(48, dtype=np.uint16).reshape(8, 6)
    memory = image(weight, b"12345678")
    places = ArenaPlaces(MAP, LAYOUT, memoryview(bytes(memory)))
    source = MemorySource(memoryview(memory), places.runs, places.content, "the arena", subject=places.subject)
    arena = ResidentArena(source, version=1, digests=chunk_digests(source.memory), folder=tmp_path / "arena")
    steps = [(weight, b"12345678"), (weight + 7, b""), (weight * 3, b"abcdefgh")]
    with Publisher(tmp_path / "published", places) as publisher:
        for version, (values, norm) in enumerate(steps, 1):
            publisher.begin(version)
            publisher.add("mlp.w", values[:3].tobytes(), Box((0, 0), (3, 6)))
            publisher.add("mlp.w", values[3:].tobytes(), Box((3, 0), (5, 6)))
            if norm:
                publisher.add("norm.w", norm)
            else:
                publisher.keep("norm.w")
            publisher.commit().result(60)
            Receiver(DirectoryOrigin(tmp_path / "published"), tmp_path / "spool", None).follow(arena)
            assert memory == image(values, norm or b"12345678")


def test_shards_of_two_processes_are_versions_of_an_arena(tmp_path: Path) -> None:
    weight = np.arange(48, dtype=np.uint16).reshape(8, 6)
    memory = image(weight, b"12345678")
    places = ArenaPlaces(MAP, LAYOUT, memoryview(memory))
    with (
        SharedImages(tmp_path / "memory", places.nbytes, [1]) as images,
        Publisher(tmp_path / "published", places, shared=images) as publisher,
        ShardWriter(tmp_path / "memory", ArenaPlaces(MAP, LAYOUT, None), 1) as writer,
    ):
        publisher.begin(0)
        writer.begin(0)
        writer.add("mlp.w", weight[:, 4:].tobytes(), Box((0, 4), (8, 2)))
        writer.commit()
        publisher.add("mlp.w", weight[:, :4].tobytes(), Box((0, 0), (8, 4)))
        publisher.add("norm.w", b"12345678")
        assert publisher.commit().result(60).digest == root_digest(chunk_digests(bytes(memory)))
    with pytest.raises(BadRequest, match="a new image needs the base arena"):
        Publisher(tmp_path / "other", ArenaPlaces(MAP, LAYOUT, None))


def test_storages_of_a_converter_are_the_same_versions_as_the_maps(tmp_path: Path) -> None:
    runtime = LAYOUT.storages[2]._replace(kind="runtime")
    layout = Layout(
        identity=LAYOUT.identity,
        arena_bytes=NBYTES,
        segments=LAYOUT.segments,
        storages=[*LAYOUT.storages[:2], runtime],
        tensors=LAYOUT.tensors,
        bindings=LAYOUT.bindings,
    )
    weight = np.arange(48, dtype=np.uint16).reshape(8, 6)
    base, new = image(weight, b"12345678"), image(weight + 7, b"12345678")
    with Publisher(tmp_path / "published", StoragePlaces(layout, memoryview(base))) as publisher:
        assert publisher.tensors.keys() == {name_at(0), name_at(512)}, "nobody gives what engines write to"
        for version, memory in enumerate((base, new)):
            publisher.begin(version)
            publisher.add(name_at(0), memory[:32], Box((0,), (32,)))
            publisher.add(name_at(0), memory[32:96], Box((32,), (64,)))
            with pytest.raises(BadRequest, match=r"storage at byte 512 \(8 elements\)"):
                publisher.commit()
            if version:
                publisher.keep(name_at(512))
            else:
                publisher.add(name_at(512), memory[512:520])
            assert publisher.commit().result(60).digest == root_digest(chunk_digests(bytes(memory)))
    with pytest.raises(BadRequest, match="an arena of 5 bytes"):
        StoragePlaces(LAYOUT, memoryview(bytes(5)))


def test_a_map_of_another_layout_or_arena_is_refused() -> None:
    other = PermutationMap.of_runs("sha256:" + "0" * 64, NBYTES, TENSORS, RUNS)
    with pytest.raises(BadRequest, match="of another layout"):
        ArenaPlaces(other, LAYOUT, memoryview(bytes(NBYTES)))
    with pytest.raises(BadRequest, match="an arena of 5 bytes"):
        ArenaPlaces(MAP, LAYOUT, memoryview(bytes(5)))


def test_each_dtype_of_maps_has_a_name_in_safetensors() -> None:
    assert {name: BITS[OF_TORCH[name]] // 8 for name in ITEM_BYTES} == ITEM_BYTES
