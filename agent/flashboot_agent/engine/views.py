"""Tensors over an arena, as a layout says: the part of attaching that needs torch and nothing of an engine.

It may run in a thread while the process still imports its engine. A shared storage is viewed where it lies; of every
other storage each process gets a private copy. No tensor owns or copies shared bytes; each keeps the mapping alive.
"""

from __future__ import annotations

from typing import Any

from flashboot_agent.wire.layout import Binding, Layout


def tensors_of(layout: Layout, base: Any) -> list[Any]:
    """A plain torch.Tensor per entry of `layout.tensors`, in that order. `base`: flat uint8 over the whole arena."""
    import torch

    memory = [_memory(layout, number, base) for number in range(len(layout.storages))]
    made = []
    with torch.no_grad():
        for view in layout.tensors:
            storage, begin = memory[view.storage]
            tensor = torch.empty(0, dtype=getattr(torch, view.dtype))
            tensor.set_(storage, begin // tensor.element_size() + view.offset, tuple(view.shape), tuple(view.stride))
            made.append(tensor)
    return made


def by_name(layout: Layout, base: Any) -> dict[str, Any]:
    """Every tensor under each of its names; a tie is one object under several. `base` as for `tensors_of`."""
    made = tensors_of(layout, base)
    return {name_of(binding): made[binding.tensor] for binding in layout.bindings}


def name_of(binding: Binding) -> str:
    return f"{binding.module}.{binding.attribute}" if binding.module else binding.attribute


def place_of(name: str) -> tuple[str, str]:
    """Module and attribute that `name_of` puts together again, for tensors that come by name and without a model."""
    module, _, attribute = name.rpartition(".")
    if not attribute or not all(module.split(".")):
        return "", name
    return module, attribute


def _memory(layout: Layout, number: int, base: Any) -> tuple[Any, int]:
    """The torch storage to view for a storage of the layout, and the byte at which it begins there."""
    import torch

    storage = layout.storages[number]
    if storage.kind == "shared" and storage.bytes:
        return base.untyped_storage(), storage.offset
    private = torch.empty(storage.bytes, dtype=torch.uint8)
    private.copy_(base[storage.offset : storage.offset + storage.bytes])
    return private.untyped_storage(), 0
