"""A checkpoint's next version in one rank's arena, made in three ways: by SGLang's load, a map, and the converter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashboot_agent.delta.gather import Shard, gather, whole
from flashboot_agent.delta.permutation import PermutationMap, Tensor
from flashboot_agent.engine import forms, walk
from flashboot_agent.engine.convert import convert
from flashboot_agent.engine.feed import Feed, described
from flashboot_agent.engine.trace import trace
from flashboot_agent.wire.layout import Layout

Values = dict[str, Any]


def checkpoint(folder: Path) -> Values:
    from safetensors.torch import load_file

    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def next_version(values: Values) -> Values:
    """Other values of the same kind: each float tensor read backwards."""
    import torch

    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}
    return {
        name: value.view(bits[value.element_size()]).flatten().flip(0).view(value.dtype).reshape(value.shape)
        if value.is_floating_point()
        else value
        for name, value in values.items()
    }


def image(layout: Layout, base: bytes, model: Any) -> bytes:
    """The base with what a model has in the storages that an update touches."""
    found = forms.found_in(walk.modules(model))
    arena = bytearray(base)
    for number, storage in forms.storages_of(found, layout.bindings, layout).items():
        place = layout.storages[number]
        if place.kind != "runtime":
            arena[place.offset : place.offset + place.bytes] = memoryview(forms.bytes_of(storage))
    return bytes(arena)


def converted(layout: Layout, base: bytes, tensors: list[Tensor], values: Values, feed: Feed) -> bytes:
    arena = bytearray(base)
    for part in convert(layout, tensors, lambda tensor: values[tensor.name], feed):
        arena[part.offset : part.offset + len(part.data)] = part.data
    return bytes(arena)


def halves(tensor: Tensor, value: Any, process: int) -> list[Shard]:
    """What the first or second of two processes of a trainer has: rows, or columns of every other tensor's matrix."""
    if not tensor.shape:
        return [whole(tensor, as_bytes(value))] if process == 0 else []
    dimension = len(tensor.name) % len(tensor.shape)
    size = tensor.shape[dimension]
    begin, end = ((0, size // 2), (size // 2, size))[process]
    cut = value.narrow(dimension, begin, end - begin)
    begins = tuple(begin if each == dimension else 0 for each in range(len(tensor.shape)))
    return [Shard(begins, tuple(cut.shape), as_bytes(cut))]


def as_bytes(value: Any) -> Any:
    import torch

    return value.contiguous().view(-1).view(torch.uint8).numpy()


def differences(layout: Layout, base: bytes, folder: Path, feed: Feed) -> Iterator[str]:
    """Where the three differ for this checkpoint's next version (nowhere, one hopes)."""
    old = checkpoint(folder)
    new, tensors = next_version(old), described(old)
    wanted = image(layout, base, feed.load(new.items()))
    if wanted == base:
        yield "the next version is the base"
    traced = trace(layout, tensors, lambda tensor: old[tensor.name], feed)
    permutation = PermutationMap.from_bytes(traced.to_bytes())
    if len(permutation.runs) > len(tensors) + 16:
        yield f"{len(permutation.runs)} runs for {len(tensors)} tensors"
    mapped = bytearray(base)
    gather(permutation, {each.name: [whole(each, as_bytes(new[each.name]))] for each in tensors}, memoryview(mapped))
    if mapped != wanted:
        yield "the map's bytes"
    sharded = bytearray(base)
    for process in range(2):
        mine = {each.name: halves(each, new[each.name], process) for each in tensors}
        gather(permutation, mine, memoryview(sharded))
    if sharded != wanted:
        yield "the map's bytes of shards"
    if converted(layout, base, tensors, new, feed) != wanted:
        yield "the converter's bytes"
