"""Trace a permutation map: SGLang loads tensors whose elements are their own numbers, and what it leaves is read.

The loader that fills arenas is run as it is, so that fused, stacked and sharded tensors need no description of their
own; in all passes at once, a decoder layer at a time (engine/convert.py), so that memory is needed for about a layer of
each. A map is believed only after it made, byte for byte, what a whole load makes of a checkpoint's values, and of
these moved by one element: numbers as weights can make a derived tensor look like a constant (scales that are none).

Holds always: an element of the arena that is no copy of one of the trainer's refuses the whole map, by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta.gather import gather, whole
from flashboot_agent.delta.permutation import ITEM_BYTES, PermutationMap, Run, Tensor
from flashboot_agent.delta.tags import Tags
from flashboot_agent.engine import forms, walk
from flashboot_agent.engine.convert import convert
from flashboot_agent.engine.feed import Feed, Fetch, fetched
from flashboot_agent.wire.layout import Layout

USE_CONVERTER: Final = "no permutation map can make it; use the converter (engine/convert.py)"


def trace(layout: Layout, tensors: Sequence[Tensor], fetch: Fetch, feed: Feed) -> PermutationMap:
    """The map of this rank's arena. In memory at a time: the arena twice.

    tensors: all that the trainer has; fetch: values of them as weights have them (a checkpoint's), for the proof.

    Raises IdentityMismatch, BadRequest, SeedFailed; UnsupportedModel, which names the first tensor that is no copy.
    """
    feed.require(layout)
    base = bytearray(layout.arena_bytes)
    runs = sorted(_runs(Tags(tensors), layout, feed, base))
    made = PermutationMap.of_runs(document_digest(layout.to_bytes()), layout.arena_bytes, tensors, runs)
    for values_of in (fetch, _moved(fetch)):
        _prove(made, layout, values_of, feed, memoryview(base))
    return made


def _runs(tags: Tags, layout: Layout, feed: Feed, base: bytearray) -> Iterator[Run]:
    """In no order. Fills `base` with what the first pass leaves, for what no tensor gives."""
    names = forms.names_of(layout)
    sizes = {view.storage: ITEM_BYTES.get(view.dtype, 1) for view in reversed(layout.tensors)}
    passes = (convert(layout, tags.tensors, _tagged(tags, number), feed, runtime=True) for number in range(tags.passes))
    for parts in zip(*passes, strict=True):
        storage, begin, data = parts[0]
        base[begin : begin + len(data)] = data
        runs, derived = tags.runs([np.frombuffer(part.data, f"u{sizes[storage]}") for part in parts], begin)
        if layout.storages[storage].kind != "runtime":
            if derived:
                raise UnsupportedModel(f"{names[storage]} is derived, cast or repacked by the load; {USE_CONVERTER}")
            yield from runs
        elif runs:
            raise UnsupportedModel(
                f"{names[storage]} is filled by the load and written by engines: it can't be updated"
            )


def _tagged(tags: Tags, number: int) -> Fetch:
    import torch

    numbers = {tensor.name: index for index, tensor in enumerate(tags.tensors)}

    def tagged(tensor: Tensor) -> Any:
        bits = tags.values(number, numbers[tensor.name])
        values = torch.from_numpy(bits.view(f"i{bits.itemsize}"))
        return values.view(getattr(torch, tensor.dtype)).reshape(tensor.shape)

    return tagged


def _moved(fetch: Fetch) -> Fetch:
    """Each element has its neighbour's value, with the lowest bit flipped: still values that weights may have."""
    import torch

    def moved(tensor: Tensor) -> Any:
        values = fetched(fetch, tensor).contiguous().view(-1)
        bits = values.view(getattr(torch, f"int{8 * ITEM_BYTES[tensor.dtype]}"))
        return (bits.roll(1) ^ 1).view(values.dtype).reshape(tensor.shape)

    return moved


def _prove(made: PermutationMap, layout: Layout, fetch: Fetch, feed: Feed, arena: memoryview) -> None:
    """Raises UnsupportedModel unless the map makes of these values what the loader does. Writes to `arena`."""
    import torch

    for tensor in made.tensors:
        values = fetched(fetch, tensor).contiguous().view(-1).view(torch.uint8).numpy()
        gather(made, {tensor.name: [whole(tensor, values)]}, arena)
    found = forms.found_in(walk.modules(feed.load((tensor.name, fetched(fetch, tensor)) for tensor in made.tensors)))
    names = forms.names_of(layout)
    for number, values in forms.storages_of(found, layout.bindings, layout).items():
        storage = layout.storages[number]
        mine = arena[storage.offset : storage.offset + storage.bytes]
        if storage.kind != "runtime" and mine != memoryview(forms.bytes_of(values)):
            raise UnsupportedModel(f"{names[number]} depends on values, not on places alone; {USE_CONVERTER}")
