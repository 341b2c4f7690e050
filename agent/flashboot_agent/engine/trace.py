"""Trace a permutation map: SGLang loads tensors whose elements are their own numbers, and what it leaves is read.

The loader that fills arenas is run as it is, so that fused, stacked and sharded tensors need no description of their
own. A map is believed only after it made, byte for byte, what the loader makes of a checkpoint's values, and of these
moved by one element: numbers as weights can make a derived tensor look like a constant (scales that are no numbers).

Holds always: an element of the arena that is no copy of one of the trainer's refuses the whole map, by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta.gather import gather, whole
from flashboot_agent.delta.permutation import ITEM_BYTES, PermutationMap, Run, Tensor
from flashboot_agent.delta.tags import Tags
from flashboot_agent.engine import forms, walk
from flashboot_agent.engine.feed import Feed, Fetch, fetched
from flashboot_agent.wire.layout import Layout

USE_CONVERTER: Final = "no permutation map can make it; use the converter (engine/convert.py)"


def trace(layout: Layout, tensors: Sequence[Tensor], fetch: Fetch, feed: Feed) -> PermutationMap:
    """The map of this rank's arena. In memory at a time: a model per pass, four for a usual one.

    tensors: all that the trainer has; fetch: values of them as weights have them (a checkpoint's), for the proof.

    Raises IdentityMismatch, BadRequest, SeedFailed; UnsupportedModel, which names the first tensor that is no copy.
    """
    feed.require(layout)
    tags = Tags(tensors)
    left = [_loaded(layout, _tagged(tags, number), feed) for number in range(tags.passes)]
    runs = list(_runs(tags, left, layout))
    base = bytearray(layout.arena_bytes)
    for number, values in left[0].items():
        begin = layout.storages[number].offset
        base[begin : begin + len(values)] = memoryview(values)
    left.clear()
    made = PermutationMap.of_runs(document_digest(layout.to_bytes()), layout.arena_bytes, tensors, runs)
    for values_of in (fetch, _moved(fetch)):
        _prove(made, layout, values_of, feed, memoryview(base))
    return made


def _loaded(layout: Layout, weights: Iterator[tuple[str, Any]], feed: Feed) -> dict[int, Any]:
    """Storage → its bytes."""
    found = forms.found_in(walk.modules(feed.load(weights)))
    storages = forms.storages_of(found, layout.bindings, layout)
    return {number: forms.bytes_of(storage) for number, storage in storages.items()}


def _tagged(tags: Tags, number: int) -> Iterator[tuple[str, Any]]:
    import torch

    for index, tensor in enumerate(tags.tensors):
        bits = tags.values(number, index)
        values = torch.from_numpy(bits.view(f"i{bits.itemsize}"))
        yield tensor.name, values.view(getattr(torch, tensor.dtype)).reshape(tensor.shape)


def _runs(tags: Tags, left: list[dict[int, Any]], layout: Layout) -> Iterator[Run]:
    names = forms.names_of(layout)
    sizes = {view.storage: ITEM_BYTES.get(view.dtype, 1) for view in reversed(layout.tensors)}
    for number, storage in enumerate(layout.storages):
        if not storage.bytes:
            continue
        seen = [values[number].view(f"u{sizes[number]}") for values in left]
        runs, derived = tags.runs(seen, storage.offset)
        if storage.kind != "runtime":
            if derived:
                raise UnsupportedModel(f"{names[number]} is derived, cast or repacked by the load; {USE_CONVERTER}")
            yield from runs
        elif runs:
            raise UnsupportedModel(f"{names[number]} is filled by the load and written by engines: it can't be updated")


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
    loaded = _loaded(layout, ((tensor.name, fetched(fetch, tensor)) for tensor in made.tensors), feed)
    names = forms.names_of(layout)
    for number, values in loaded.items():
        storage = layout.storages[number]
        mine = arena[storage.offset : storage.offset + storage.bytes]
        if storage.kind != "runtime" and mine != memoryview(values):
            raise UnsupportedModel(f"{names[number]} depends on values, not on places alone; {USE_CONVERTER}")
