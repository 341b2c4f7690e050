"""Versions of an arena, published as a trainer publishes them, and orders to bring a node's arena to one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta import words
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.tensors import TensorPlaces, TensorSpec
from flashboot_agent.wire.desired import Role, WantedArena
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.update import WantedUpdate
from tests.component.agents import MIB, Node, layout_for, wanted

NBYTES = 20 * MIB + 512
KEY = Ed25519PrivateKey.generate()


def root(data: bytes) -> str:
    return root_digest(chunk_digests(data))


class Versions(Sequence[bytes]):
    """Made when they are asked for: tens of MiB each, in a module that every worker of the tests collects."""

    def __init__(self, count: int, nbytes: int = NBYTES) -> None:
        self._numbers, self._nbytes = range(count), nbytes
        self._made: list[bytes] = []

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self._version(number) for number in self._numbers[at]]
        return self._version(self._numbers[at])

    def _version(self, number: int) -> bytes:
        while len(self._made) <= number:
            self._made.append(_after(self._made[-1], len(self._made)) if self._made else os.urandom(self._nbytes))
        return self._made[number]


def _after(version: bytes, seed: int) -> bytes:
    """About one byte in a hundred is another one."""
    data = np.frombuffer(version, np.uint8).copy()
    data[np.random.default_rng(seed).integers(0, len(data), len(data) // 100)] += 1
    return data.tobytes()


class ArenaOfBytes(TensorPlaces):
    """The arena of `layout_for`: one tensor of bytes."""

    subject: Literal["arena", "checkpoint"] = "arena"

    def __init__(self, nbytes: int) -> None:
        super().__init__({"weight": TensorSpec("U8", (nbytes,))})
        layout = layout_for(nbytes)
        self.content, self.runs = document_digest(layout), words.of_layout(Layout.from_bytes(layout))


def publish(folder: Path, images: Sequence[bytes], key: Ed25519PrivateKey | None = KEY) -> None:
    """As versions 0, 1 and so on."""
    with Publisher(folder, ArenaOfBytes(len(images[0])), key=key) as publisher:
        for number, image in enumerate(images):
            publisher.begin(number)
            publisher.add("weight", image)
            publisher.commit().result(60)


def order(origin: Path | str, version: int, key: Ed25519PrivateKey = KEY, *, seconds: int = 60) -> WantedUpdate:
    return WantedUpdate(
        version=version, origin=str(origin), keys=[key.public_key().public_bytes_raw().hex()], seconds=seconds
    )


def seed(node: Node, image: bytes, *, updatable: bool = True) -> None:
    """The arena becomes resident, and nobody has it any more."""
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid], updatable=updatable))
    with node.engine(uid) as engine:
        engine.seed(image)
    node.want(held())
    node.unpublish(uid)
    node.until_arena(lambda arena: not arena.pods, "no pod")


def held(role: Role = "hold", **facts: Any) -> WantedArena:
    return wanted(role, updatable=True, **facts)


def read(node: Node, **facts: Any) -> bytes:
    """What an engine that attaches now sees; it is gone afterwards."""
    uid = node.publish()
    node.want(held(pods=[uid], **facts))
    with node.engine(uid) as engine:
        ready, data = engine.attach()
        assert ready.digest == root(data)
    node.want(held())
    node.unpublish(uid)
    return data
