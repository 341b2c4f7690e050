"""Versions of a few tensors for tests of publishing and receiving, and an arena that has one of them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.sync.origin import DirectoryOrigin
from flashboot_agent.sync.press import Published
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.tensors import TensorPlaces, TensorSpec
from tests.deltas import BFLOAT16, stepped_version, weights

SPECS = {
    "layers.0.weight": TensorSpec("BF16", (300, 700)),
    "layers.1.weight": TensorSpec("BF16", (900, 700)),
    "embed": TensorSpec("BF16", (1001,)),
    "scale": TensorSpec("BF16", ()),
}
PLACES = TensorPlaces(SPECS)

Version = dict[str, bytes]
KEY = Ed25519PrivateKey.generate()


def first() -> Version:
    return {name: weights(prod(spec.shape), BFLOAT16, seed=number) for number, (name, spec) in enumerate(SPECS.items())}


def after(version: Version, seed: int) -> Version:
    return {name: stepped_version(data, BFLOAT16, 0.01, seed=seed) for name, data in version.items()}


def versions(count: int) -> list[Version]:
    found = [first()]
    for seed in range(1, count):
        found.append(after(found[-1], seed))
    return found


def publish(publisher: Publisher, number: int, version: Version) -> Published:
    publisher.begin(number)
    for name, data in version.items():
        publisher.add(name, data)
    return publisher.commit().result(60)


def image(version: Version, places: TensorPlaces = PLACES) -> bytearray:
    found = bytearray(places.nbytes)
    for name, data in version.items():
        begin, end = places.extent(name)
        found[begin:end] = data
    return found


def arena(memory: bytearray, number: int, folder: Path) -> ResidentArena:
    source = MemorySource(memoryview(memory), PLACES.runs, PLACES.content, "the arena", subject=PLACES.subject)
    return ResidentArena(source, number, chunk_digests(source.memory), folder)


def receiver(folder: Path, spool: Path, *, signed: bool = False) -> Receiver:
    return Receiver(DirectoryOrigin(folder), spool, [KEY.public_key()] if signed else None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """The system refuses to let a file grow beyond that, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
