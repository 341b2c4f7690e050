"""Whether a model that was loaded from given tensors is the one of an arena, and where its bytes are."""

from __future__ import annotations

from typing import Any

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine import walk
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding

Place = tuple[str, str]
"""Module and attribute."""


def storages_of(found: dict[Place, Any], bindings: list[Binding], layout: Layout) -> dict[int, Any]:
    """Number in the layout → torch storage, of those that the bindings lead to.

    Raises UnsupportedModel, which names the first tensor that is not as the layout says."""
    storages: dict[int, Any] = {}
    for binding in bindings:
        view = layout.tensors[binding.tensor]
        tensor = found.get((binding.module, binding.attribute))
        if tensor is None:
            raise UnsupportedModel(f"{name_of(binding)} is in the arena and not in the model of these tensors")
        storage = tensor.untyped_storage()
        mine = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype), storage.nbytes())
        said = (view.offset, view.shape, view.stride, f"torch.{view.dtype}", layout.storages[view.storage].bytes)
        if mine != said:
            raise UnsupportedModel(
                f"{name_of(binding)} is {mine} in the model of these tensors and {said} in the arena"
            )
        first = storages.setdefault(view.storage, storage)
        if first.data_ptr() != storage.data_ptr():
            raise UnsupportedModel(f"{name_of(binding)} has memory of its own here; in the arena it shares another's")
    return storages


def found_in(modules: dict[str, Any]) -> dict[Place, Any]:
    return {(item.module, item.attribute): item.tensor for item in walk.tensors_in(modules)}


def bytes_of(storage: Any) -> Any:
    """As a flat numpy array of uint8, without a copy; it keeps the storage."""
    import torch

    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def names_of(layout: Layout) -> dict[int, str]:
    """Storage → the first name of a tensor there, for messages."""
    found: dict[int, str] = {}
    for binding in layout.bindings:
        found.setdefault(layout.tensors[binding.tensor].storage, name_of(binding))
    return found


def name_of(binding: Binding) -> str:
    return f"{binding.module}.{binding.attribute}".removeprefix(".")
