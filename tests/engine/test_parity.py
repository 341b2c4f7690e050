"""Seed = plain SGLang = attach: by place, shape, stride, dtype, class, bytes, marks and ties, all inside the arena."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.engine import session, walk
from flashboot_agent.wire import attach as wire
from tests.engine import peer as peers
from tests.engine import runtime
from tests.engine.runtime import ARCHITECTURES


@dataclass
class Trio:
    plain: Any
    seeded: Any
    attached: Any
    seed_loader: Any
    attach_loader: Any
    peer: peers.Peer
    rope_before: dict[Any, Any]
    rope_after: dict[Any, Any]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def trio(
    request: pytest.FixtureRequest, checkpoints: dict[str, Path], hooked: None, tmp_path_factory: Any
) -> Iterator[Trio]:
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT

    folder = checkpoints[request.param]
    path = Path("/tmp") / f"fb-{tmp_path_factory.mktemp('s').name}-{request.param}.sock"
    peer = peers.Peer(path)
    _ROPE_DICT.clear()  # else models of this process would share rotary modules
    _, plain = runtime.load(runtime.publish(folder))
    _ROPE_DICT.clear()
    config = runtime.publish(folder, path)
    settings = session.published_settings()
    assert settings is not None
    seed_loader, seeded = runtime.load(config)
    peer.wait_for(wire.Attached)
    session.forget(settings)
    before = dict(_ROPE_DICT)
    attach_loader, attached = runtime.load(config)
    yield Trio(plain, seeded, attached, seed_loader, attach_loader, peer, before, dict(_ROPE_DICT))
    session.forget(settings)
    peer.close()


def facts(found: walk.Found) -> tuple[Any, ...]:
    tensor = found.tensor
    return (
        *(found.module, found.attribute, found.kind),
        *(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad),
        type(tensor),
        sorted(vars(tensor)) if found.kind == "parameter" else None,
    )


def as_bytes(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


def test_all_three_hold_the_same_tensors(trio: Trio) -> None:
    plain, seeded, attached = (list(walk.tensors(model)) for model in (trio.plain, trio.seeded, trio.attached))
    assert len(plain) > 10
    assert [facts(item) for item in plain] == [facts(item) for item in seeded] == [facts(item) for item in attached]
    for one, two, three in zip(plain, seeded, attached, strict=True):
        assert as_bytes(one.tensor) == as_bytes(two.tensor) == as_bytes(three.tensor), str(one)


def test_ties_are_the_same_objects(trio: Trio) -> None:
    def shape_of_ties(model: Any) -> list[list[str]]:
        names: dict[int, list[str]] = {}
        for item in walk.tensors(model):
            names.setdefault(id(item.tensor), []).append(str(item))
        return sorted(names.values())

    ties = shape_of_ties(trio.plain)
    assert ties == shape_of_ties(trio.seeded) == shape_of_ties(trio.attached)
    if "Qwen2" in type(trio.plain).__name__:
        assert ["lm_head.weight", "model.embed_tokens.weight"] in [sorted(tie) for tie in ties]


def test_modules_carry_the_same_marks(trio: Trio) -> None:
    plain = walk.marks(trio.plain)
    assert plain == walk.marks(trio.seeded)
    assert plain == walk.marks(trio.attached)
    assert not trio.attached.training


def test_every_tensor_lies_in_the_arena_and_none_on_meta(trio: Trio) -> None:
    for model in (trio.seeded, trio.attached):
        found = list(walk.tensors(model))
        begin = found[0].tensor.untyped_storage().data_ptr()
        for item in found:
            assert not item.tensor.is_meta, str(item)
            assert item.tensor.untyped_storage().data_ptr() == begin, str(item)
            assert item.tensor.untyped_storage().nbytes() == trio.peer.nbytes


def test_the_arena_is_mapped_read_only(trio: Trio) -> None:
    begin = next(walk.tensors(trio.attached)).tensor.untyped_storage().data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= begin < last:
            assert line.split()[1] == "r--s", line
            break
    else:
        pytest.fail(f"{begin:x} is not mapped")
    writable = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:arena" in line and " rw" in line
    ]
    assert writable == []


def test_preloaded_bytes_are_the_arena_for_an_attached_engine_only(trio: Trio) -> None:
    assert trio.seed_loader.preloaded_weights_bytes == 0
    assert trio.attach_loader.preloaded_weights_bytes == trio.peer.nbytes > 0


def test_the_processes_rotary_cache_is_left_alone(trio: Trio) -> None:
    assert trio.rope_after == trio.rope_before
    assert not any(buffer.is_meta for module in trio.rope_after.values() for buffer in module.buffers())


def test_the_layout_is_deterministic_and_carries_the_identity(trio: Trio) -> None:
    from flashboot_agent.engine.plan import plan

    assert trio.peer.layout is not None
    layout = json.loads(trio.peer.layout)
    again = plan(walk.tensors(trio.plain), layout["identity"], layout["scalars"]).layout
    assert again.to_json() == trio.peer.layout
    assert layout["identity"]["architecture"] == type(trio.plain).__name__


def test_the_agent_heard_both_engines(trio: Trio) -> None:
    trio.peer.wait_for(wire.Attached, 2)
    kinds = [type(message) for message in trio.peer.seen]
    assert kinds.count(wire.Hello) == 2
    assert kinds.index(wire.Allocate) < kinds.index(wire.Commit)
    first, second = (message.identity for message in trio.peer.seen if isinstance(message, wire.Hello))
    assert first == second
