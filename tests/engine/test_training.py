"""From a training loop to an engine: three steps of a Qwen3-MoE, published as deltas, received, attached and served.

After each step the received arena is, bit for bit, what SGLang's loader makes of the checkpoint that the trainer saved;
by the permutation map and by the converter alike.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta import words
from flashboot_agent.delta.permutation import PermutationMap, Tensor
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.engine import session
from flashboot_agent.engine.convert import Part, convert
from flashboot_agent.engine.feed import Feed, described
from flashboot_agent.engine.trace import trace
from flashboot_agent.memory import memfd
from flashboot_agent.sync.arena_places import ArenaPlaces
from flashboot_agent.sync.http import HttpOrigin
from flashboot_agent.sync.origin import DirectoryOrigin, Origin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.storage_places import StoragePlaces, name_at
from flashboot_agent.sync.torch_tensors import add_all
from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.place import Place
from tests.component.sync_server import serving
from tests.engine import peer as peers
from tests.engine import runtime, tokens
from tests.engine.training import Trainer

STEPS = 3
RATE = 1e-3
"""Each element may move by about that in a step: enough for other tokens after three."""


class Received:
    """An arena in memory of a node, and its receiver."""

    def __init__(self, base: bytes, layout: Layout, origin: Origin, folder: Path) -> None:
        self.descriptor = memfd.create("arena", len(base))
        self._mapped = mmap.mmap(self.descriptor, len(base))
        self.memory = memoryview(self._mapped)
        self.memory[:] = base
        source = MemorySource(self.memory, words.of_layout(layout), document_digest(layout.to_bytes()), str(folder))
        self.arena = ResidentArena(source, 0, chunk_digests(base), folder / "arena")
        self._source, self._receiver = source, Receiver(origin, folder / "spool", trusted=None)

    def follow(self) -> bytes:
        (step,) = self._receiver.follow(self.arena)
        assert 0 < step.nbytes < self.arena.nbytes
        return bytes(self.memory)

    def give(self) -> int:
        """The descriptor, once nobody here can write any more."""
        self._source.memory = memoryview(b"")
        self.memory.release()
        self._mapped.close()
        return self.descriptor


def seeded(checkpoint: Path, socket_path: Path) -> tuple[Layout, bytes, Any]:
    """An arena that a seed makes of a checkpoint with SGLang's loader; and the ModelConfig that it had."""
    with engine(checkpoint, socket_path) as (peer, config):
        runtime.load(config)
        peer.wait_for(wire.Attached)
        arena = peer.arena(Place())
        assert arena.layout is not None
        assert arena.memory is not None
        return Layout.from_bytes(arena.layout), os.pread(arena.memory, arena.nbytes, 0), config


def attached(config: Any, peer: peers.Peer, layout: Layout, memory: int) -> Any:
    """The model of an engine whose agent has this arena."""
    arena = peer.arena(Place())
    arena.memory, arena.nbytes = memory, layout.arena_bytes
    arena.layout, arena.identity = layout.to_bytes(), layout.identity
    _, model = runtime.load(config)
    peer.wait_for(wire.Attached)
    assert peer.count(wire.Allocate) == 0
    return model


@contextmanager
def engine(checkpoint: Path, socket_path: Path) -> Iterator[tuple[peers.Peer, Any]]:
    """What an engine's process has before its load, and the agent that it will talk to."""
    peer = peers.Peer(socket_path)
    config = runtime.publish(checkpoint, socket_path)
    settings = session.published_settings()
    assert settings is not None
    try:
        with runtime.own_tables():
            yield peer, config
    finally:
        session.forget(settings)
        peer.close()
        peer.forget()


def plain_tokens(checkpoint: Path, runner: Any) -> list[list[int]]:
    with runtime.own_tables():
        _, model = runtime.load(runtime.publish(checkpoint))
        return tokens.greedy(runner, model)


def publish_map(publisher: Publisher, version: int, weights: dict[str, Any]) -> None:
    publisher.begin(version)
    add_all(publisher, weights)
    publisher.commit().result()


def publish_parts(publisher: Publisher, version: int, parts: Iterator[Part]) -> None:
    publisher.begin(version)
    for part in parts:
        publisher.add(name_at(part.offset), part.data)
    publisher.commit().result()


def test_three_steps_of_training_reach_a_serving_engine_as_if_sglang_had_loaded_them(
    checkpoints: dict[str, Path], runner: Any, socket_path: Path, tmp_path: Path
) -> None:
    trainer = Trainer(checkpoints["qwen3_moe"], RATE)
    saved = [trainer.save(tmp_path / "saved-0" / "model")]
    layout, base, config = seeded(saved[0], socket_path)
    weights = trainer.served()
    tensors, feed = described(weights), feed_of(config, layout)

    def values(tensor: Tensor) -> Any:
        return weights[tensor.name]

    traced = trace(layout, tensors, values, feed)
    permutation = PermutationMap.from_bytes(traced.to_bytes())
    by_map, by_converter = tmp_path / "by-map", tmp_path / "by-converter"
    with (
        Publisher(by_map, ArenaPlaces(permutation, layout, memoryview(base))) as mapping,
        Publisher(by_converter, StoragePlaces(layout, memoryview(base))) as converting,
        serving(by_map) as server,
        HttpOrigin(server.url) as origin,
    ):
        publish_map(mapping, 0, weights)
        publish_parts(converting, 0, convert(layout, tensors, values, feed))
        one = Received(base, layout, origin, tmp_path / "one")
        other = Received(base, layout, DirectoryOrigin(by_converter), tmp_path / "other")
        for step in range(1, STEPS + 1):
            trainer.step()
            saved.append(trainer.save(tmp_path / f"saved-{step}" / "model"))
            weights = trainer.served()
            publish_map(mapping, step, weights)
            publish_parts(converting, step, convert(layout, tensors, values, feed))
            same, loaded, _ = seeded(saved[step], socket_path)
            assert same == layout
            assert loaded != base
            assert one.follow() == loaded, f"step {step}, by the map"
            assert other.follow() == loaded, f"step {step}, by the converter"
            base = loaded
    assert files_of(by_map) == files_of(by_converter)

    before, expected = plain_tokens(saved[0], runner), plain_tokens(saved[-1], runner)
    assert before != expected, "three steps changed no token: nothing is shown"
    bare = shutil.copytree(saved[0], tmp_path / "bare" / "model", ignore=shutil.ignore_patterns("*.safetensors*"))
    with engine(bare, socket_path) as (peer, config):
        assert tokens.greedy(runner, attached(config, peer, layout, one.give())) == expected


def feed_of(config: Any, layout: Layout) -> Feed:
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig

    return Feed(config, DeviceConfig("cpu", 0), LoadConfig(), layout.identity)


def files_of(folder: Path) -> dict[str, bytes]:
    """The chain and its deltas."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
