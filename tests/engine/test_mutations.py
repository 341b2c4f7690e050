"""Change any one thing that decides which bytes become which tensor's: each change is caught before a tensor is bound.

Three enumerations over a real tiny model, with their counts printed: every field of the identity, every bit of the
layout document, every binding in it. What is caught where:

    identity   by the agent and again by the engine, which both compare all fields
    document   by its checksum when it is read; under a mended checksum by what must hold in any layout, and in any case
               by its digest, which the operator insists on against a parent and the engine against its agent
    bindings   by the document, by the model on the meta device, or (two tensors of one shape exchanged) by the digest
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.errors import BadRequest, DigestMismatch, IdentityMismatch, UnsupportedModel
from flashboot_agent.core.identity import digest_of, document_digest, require_equal
from flashboot_agent.engine import rebind, session, shadow
from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.identity import identity_of
from flashboot_agent.engine.mapping import parse_layout
from flashboot_agent.engine.settings import EngineSettings
from flashboot_agent.node import documents
from flashboot_agent.wire.layout import Layout, LayoutError
from flashboot_agent.wire.layout_bytes import PREFIX
from flashboot_agent.wire.layout_entries import BINDING_KINDS, Binding
from flashboot_agent.wire.place import Place
from tests.engine import peer as peers
from tests.engine import runtime
from tests.engine.fields import field_names

CHECKED_FROM = 16
"""Where the part of the document begins that its checksum covers; the checksum stands right before."""


@dataclass
class Seeded:
    peer: peers.Peer
    config: Any
    settings: EngineSettings
    identity: dict[str, str]
    document: bytes
    layout: Layout

    def ask(self, identity: dict[str, str]) -> AgentClient:
        return AgentClient(str(self.peer.path), Deadlines(connect=2, arena=2), 60, Place(), identity)


@pytest.fixture
def seeded(hooked: None, checkpoints: dict[str, Path], socket_path: Path) -> Iterator[Seeded]:
    """A tied Qwen2 whose arena a peer holds."""
    peer = peers.Peer(socket_path)
    config = runtime.publish(checkpoints["qwen2"], socket_path)
    runtime.load(config)
    settings = session.published_settings()
    assert settings is not None
    assert peer.layout is not None
    identity = identity_of(settings, config)
    yield Seeded(peer, config, settings, identity, peer.layout, Layout.from_bytes(peer.layout))
    session.forget(settings)
    peer.close()


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    """Print a count, whatever the verbosity."""

    def shown(text: str) -> None:
        with capsys.disabled():
            print(f"\n  mutations: {text}")

    return shown


def test_a_change_of_any_one_field_of_the_identity_is_caught(seeded: Seeded, shown: Any) -> None:
    assert seeded.layout.identity == seeded.identity
    present, absent = sorted(seeded.identity), sorted(set(field_names()) - set(seeded.identity))
    others = [{**seeded.identity, name: seeded.identity[name] + "x"} for name in present]
    others += [{key: value for key, value in seeded.identity.items() if key != name} for name in present]
    others += [{**seeded.identity, name: "x"} for name in absent]
    for name, other in zip([*present, *present, *absent], others, strict=True):
        assert digest_of(other) != digest_of(seeded.identity), name
        with pytest.raises(IdentityMismatch, match=name.replace(".", r"\.")):  # the engine, before it maps anything
            require_equal(other, parse_layout(seeded.document).identity, whose="arena")
        with pytest.raises(IdentityMismatch, match=name.replace(".", r"\.")):  # the agent, of a seed's layout
            documents.parse_committed(seeded.document, other, seeded.layout.arena_bytes)
        client = seeded.ask(other)
        with pytest.raises(IdentityMismatch):  # the agent, of an engine's hello
            client.wait()
        client.close()
    shown(f"{len(others)} identities that differ in one field of {len(present) + len(absent)}: all refused")


def test_a_change_of_any_one_bit_of_the_layout_is_caught(
    seeded: Seeded, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, digest = seeded.document, document_digest(seeded.document)
    caught: Counter[str] = Counter()
    for at in range(len(document)):
        for bit in range(8):
            altered = bytearray(document)
            altered[at] ^= 1 << bit
            with pytest.raises(BadRequest):
                parse_layout(bytes(altered))
            caught["by their checksum"] += 1
            mended = mend(altered)
            if mended == document:
                continue  # the flip was in the checksum itself
            assert document_digest(mended) != digest
            try:
                parse_layout(mended)
                caught["under a mended checksum, by the digest alone"] += 1
            except BadRequest:
                caught["under a mended checksum, as no layout"] += 1
    monkeypatch.setattr(peers, "document_digest", lambda document: digest)
    for at in (8, PREFIX.size, len(document) // 2, len(document) - 1):
        altered = bytearray(document)
        altered[at] ^= 1
        refused(seeded, mend(altered))
    told = ", ".join(f"{number} caught {how}" for how, number in sorted(caught.items()))
    shown(f"{len(document)} bytes of a layout, {8 * len(document)} single bits: {told}")


def test_a_change_of_any_one_binding_is_caught(seeded: Seeded, shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.configs.load_config import LoadConfig

    layout, digest = seeded.layout, document_digest(seeded.document)
    model = shadow.build(seeded.config, LoadConfig())
    shadow.as_loaded(model, layout)
    rebind.resolve(model, layout)  # as it is, it fits
    monkeypatch.setattr(peers, "document_digest", lambda document: digest)
    caught: Counter[str] = Counter()
    before = arenas_open()
    for what, bindings in changes(layout.bindings, len(layout.tensors)):
        try:
            altered = Layout(**{**content(layout), "bindings": bindings})
        except LayoutError:
            caught["as no layout"] += 1
            continue
        assert document_digest(altered.to_bytes()) != digest, what
        try:
            rebind.resolve(model, altered)
            refused(seeded, altered.to_bytes())
            caught["by the digest alone"] += 1
        except UnsupportedModel:
            caught["by the model"] += 1
    told = ", ".join(f"{number} {how}" for how, number in sorted(caught.items()))
    assert arenas_open() <= before + 1, "an engine that refuses an arena closes it"
    shown(f"{caught.total()} changes of one of {len(layout.bindings)} bindings, caught: {told}")
    assert caught["by the model"] > len(layout.bindings)


def changes(bindings: list[Binding], tensors: int) -> Iterator[tuple[str, list[Binding]]]:
    """Each binding left out, said twice, renamed, on each other module, of each other kind, of each other tensor."""
    for number, binding in enumerate(bindings):
        before, after = bindings[:number], bindings[number + 1 :]
        yield f"without {binding}", [*before, *after]
        yield f"{binding} twice", [*before, binding, binding, *after]
        others = [binding._replace(attribute=f"{binding.attribute}x"), binding._replace(module=f"{binding.module}.x")]
        others += [binding._replace(module=each) for each in sorted({b.module for b in bindings} - {binding.module})]
        others += [binding._replace(kind=kind) for kind in BINDING_KINDS if kind != binding.kind]
        others += [binding._replace(tensor=tensor) for tensor in range(tensors) if tensor != binding.tensor]
        for other in others:
            yield f"{binding} as {other}", [*before, other, *after]


def content(layout: Layout) -> dict[str, Any]:
    names = ("identity", "arena_bytes", "segments", "storages", "tensors", "scalars", "deleted", "structure")
    return {name: getattr(layout, name) for name in names}


def mend(document: bytes | bytearray) -> bytes:
    """The document with the checksum of what it has now."""
    checksum = struct.pack("<I", zlib.crc32(document[CHECKED_FROM:]))
    return bytes(document[: CHECKED_FROM - 4]) + checksum + bytes(document[CHECKED_FROM:])


def refused(seeded: Seeded, altered: bytes) -> None:
    """An agent that hands this over for what it once sealed: the engine does not take it."""
    seeded.peer.arena(Place()).layout = altered
    client = seeded.ask(seeded.identity)
    with pytest.raises(DigestMismatch, match="differs from its digest"):
        client.wait()
    client.close()


def arenas_open() -> int:
    """Descriptors of arenas in this process, which is engine and agent here."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum("memfd:arena" in os.readlink(link) for link in links if os.path.islink(link))
