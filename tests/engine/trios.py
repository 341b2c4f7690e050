"""One model three times, by plain SGLang, as a seed and attached, and where the three differ (nowhere, one hopes)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.engine import marks, session, walk
from flashboot_agent.engine.mapping import parse_layout
from flashboot_agent.wire import attach as wire
from flashboot_agent.wire.layout import Layout
from tests.engine import peer as peers
from tests.engine import runtime


@dataclass
class Trio:
    name: str
    plain: Any
    seeded: Any
    attached: Any
    seed_loader: Any
    attach_loader: Any
    peer: peers.Peer
    rope_before: dict[Any, Any]
    rope_after: dict[Any, Any]

    @property
    def layout(self) -> Layout:
        assert self.peer.layout is not None
        return parse_layout(self.peer.layout)


@contextmanager
def three(folder: Path, socket_path: Path) -> Iterator[Trio]:
    """The three, in this process. The seed and the attaching engine talk to a Peer at the socket."""
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT

    peer = peers.Peer(socket_path)
    settings = None
    try:
        _ROPE_DICT.clear()  # else models of this process would share rotary modules
        _, plain = runtime.load(runtime.publish(folder))
        _ROPE_DICT.clear()
        config = runtime.publish(folder, socket_path)
        settings = session.published_settings()
        assert settings is not None
        seed_loader, seeded = runtime.load(config)
        peer.wait_for(wire.Attached)
        session.forget(settings)
        before = dict(_ROPE_DICT)
        with _no_load(type(plain)):
            attach_loader, attached = runtime.load(config)
        yield Trio(folder.name, plain, seeded, attached, seed_loader, attach_loader, peer, before, dict(_ROPE_DICT))
    finally:
        if settings is not None:
            session.forget(settings)
        peer.close()


@contextmanager
def _no_load(model: type) -> Iterator[None]:
    """An attaching engine calls nothing of what loads weights or finishes that."""

    def called(*_: Any, **__: Any) -> None:
        raise AssertionError("an attaching engine ran a load")

    with pytest.MonkeyPatch.context() as bent:
        for name in ("load_weights", "post_load_weights"):
            if hasattr(model, name):
                bent.setattr(model, name, called)
        yield


def differences(plain: Any, other: Any, layout: Layout) -> list[str]:
    """Where `other` is not what `plain` is, or lies where the layout does not say; empty when all is equal."""
    one, two = ({str(item): item for item in walk.tensors(model)} for model in (plain, other))
    found = [f"{place}: only in one of the two" for place in one.keys() ^ two.keys()]
    for place in one.keys() & two.keys():
        if facts(one[place]) != facts(two[place]):
            found.append(f"{place}: {facts(one[place])} and {facts(two[place])}")
        elif as_bytes(one[place].tensor) != as_bytes(two[place].tensor):
            found.append(f"{place}: other bytes")
    if ties(plain) != ties(other):
        found.append("other ties")
    before, after = marks.marks(plain), marks.marks(other)
    for name in before.keys() | after.keys():
        here, there = before.get(name, {}), after.get(name, {})
        for key in here.keys() | there.keys():
            if key not in here or key not in there or not marks.same(here[key], there[key]):
                found.append(f"{name}.{key}: {here.get(key, 'nothing')!r} and {there.get(key, 'nothing')!r}")
    if marks.names(plain) != marks.names(other):
        found.append("other names of attributes")
    return found + list(misplaced(other, layout))


def misplaced(model: Any, layout: Layout) -> Iterator[str]:
    """Tensors on the meta device, shared ones outside of the one mapping, private ones inside."""
    kinds = {
        (binding.module, binding.attribute): layout.storages[layout.tensors[binding.tensor].storage]
        for binding in layout.bindings
    }
    found = list(walk.tensors(model))
    for path, tensor in walk.hidden_tensors(model):
        if tensor.is_meta:
            yield f"{path} is on the meta device"
    inside = {item.tensor.untyped_storage().data_ptr() for item in found if _shared(kinds, item)}
    if len(inside) != 1:
        yield f"the shared tensors lie in {len(inside)} mappings"
    for item in found:
        if item.tensor.is_meta:
            yield f"{item} is on the meta device"
        elif item.tensor.numel() and _shared(kinds, item) != (item.tensor.untyped_storage().data_ptr() in inside):
            yield f"{item} is {kinds[item.module, item.attribute].kind} and lies elsewhere"


def _shared(kinds: dict[tuple[str, str], Any], item: walk.Found) -> bool:
    return bool(kinds[item.module, item.attribute].kind == "shared" and item.tensor.numel())


def facts(found: walk.Found) -> tuple[Any, ...]:
    tensor = found.tensor
    return (
        *(found.module, found.attribute, found.kind),
        *(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad),
        type(tensor),
        {key: value for key, value in vars(tensor).items() if marks.is_scalar(value)},
        sorted(vars(tensor)),
    )


def as_bytes(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


def ties(model: Any) -> list[list[str]]:
    """Places that hold one tensor object."""
    places: dict[int, list[str]] = {}
    for item in walk.tensors(model):
        places.setdefault(id(item.tensor), []).append(str(item))
    return sorted(names for names in places.values() if len(names) > 1)
