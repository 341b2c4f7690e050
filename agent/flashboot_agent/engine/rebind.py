"""Put a model's tensors over an arena, exactly as the layout says, and prove it.

Two ways, one result. `install` gives a model on the meta device its tensors (attach). `repoint` moves the tensors of a
loaded model, keeping every object (seed). Nothing is changed before everything is resolved; afterwards `verify` walks
the model again and fails on anything left on the meta device, outside of the arena or tied in another way.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine import views, walk
from flashboot_agent.engine.collector import collector_paused
from flashboot_agent.engine.walk import Found, class_name
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding, Storage, TensorView


def install(model: Any, layout: Layout, base: Any) -> None:
    """Bind every tensor of `layout` on `model`, which was built on the meta device. `base`: flat uint8 over the arena.

    Raises UnsupportedModel when model and layout differ, naming the first place.
    """
    import torch

    with collector_paused(), torch.no_grad():
        modules = walk.modules(model)
        planned = _resolved(modules, layout)
        replaced = _replaced(planned, layout)
        made = views.tensors_of(layout, base, classes=[None if old is None else type(old) for old in replaced])
        _take_over(made, replaced, layout)
        for binding in layout.bindings:
            _bind(modules[binding.module], binding, made[binding.tensor])


def resolve(model: Any, layout: Layout) -> list[Any]:
    """For each binding the model's tensor on the meta device, or None where only the seed's load made one.

    Changes nothing. Raises UnsupportedModel when model and layout differ, naming the first place.
    """
    with collector_paused():
        return _resolved(walk.modules(model), layout)


def _resolved(modules: dict[str, Any], layout: Layout) -> list[Any]:
    rest = {(item.module, item.attribute): item for item in walk.tensors_in(modules)}
    result: list[Any] = []
    for binding in layout.bindings:
        if binding.module not in modules:
            raise UnsupportedModel(f"the seed's model has a module {binding.module!r}, this one has not")
        old = rest.pop((binding.module, binding.attribute), None)
        _require_alike(binding, layout.tensors[binding.tensor], old)
        result.append(old.tensor if old else None)
    if rest:
        first = next(iter(rest.values()))
        raise UnsupportedModel(f"{first} is in this model but not in the seed's, and {len(rest) - 1} more")
    return result


def repoint(objects: list[Any], layout: Layout, base: Any) -> None:
    """Move the tensor objects of a loaded model (in the layout's order) over the arena; other storages stay private.

    Every object keeps its identity, class and attributes; the memory it came from is freed with its last tensor.
    """
    import torch

    shared = base.untyped_storage()
    with torch.no_grad():
        for tensor, view in zip(objects, layout.tensors, strict=True):
            storage = layout.storages[view.storage]
            if storage.kind == "shared" and storage.bytes:
                offset = storage.offset // tensor.element_size() + view.offset
                tensor.set_(shared, offset, view.shape, view.stride)


def verify(model: Any, layout: Layout, base: Any) -> None:
    """Raises UnsupportedModel unless every tensor is what the layout says and lies where it says, ties included."""
    with collector_paused():
        _verify(model, layout, base)


def _verify(model: Any, layout: Layout, base: Any) -> None:
    found = {(item.module, item.attribute, item.kind): item for item in walk.tensors(model)}
    firsts: list[Any] = [None] * len(layout.tensors)
    for module, attribute, kind, number in layout.bindings:
        item, first = found.get((module, attribute, kind)), firsts[number]
        if item is None:
            raise UnsupportedModel(f"the model's tensors are not the layout's, first at {module}.{attribute}, a {kind}")
        if first is None:
            firsts[number] = item
        elif first.tensor is not item.tensor:
            raise UnsupportedModel(f"{item} is tied to {first} in the seed's model and is not here")
    if len(found) != len(layout.bindings):
        places = {(binding.module, binding.attribute, binding.kind) for binding in layout.bindings}
        raise UnsupportedModel(f"the model's tensors are not the layout's, first at {min(found.keys() - places)}")
    begin = base.data_ptr()
    arena = range(begin, begin + base.numel())
    storages, owners = layout.storages, dict[int, Found]()
    for item, view in zip(firsts, layout.tensors, strict=True):
        _require_as_planned(item, view)
        if 0 not in view.shape:
            _require_in_place(item, view, storages[view.storage], arena)
        other = owners.setdefault(id(item.tensor), item)
        if other is not item:
            raise UnsupportedModel(f"{item} is tied to {other} here and was not in the seed's model")


def _require_as_planned(item: Found, view: TensorView) -> None:
    tensor = item.tensor
    if tensor.is_meta:
        raise UnsupportedModel(f"{item} is still on the meta device")
    same = tensor.shape == view.shape and tensor.stride() == view.stride and tensor.dtype is _dtype(view.dtype)
    if not same or class_name(type(tensor)) != view.cls:
        now = (tuple(tensor.shape), tensor.stride(), str(tensor.dtype).removeprefix("torch."), class_name(type(tensor)))
        said = (view.shape, view.stride, view.dtype, view.cls)
        raise UnsupportedModel(f"{item} is {now}, the layout says {said}")


def _require_in_place(item: Found, view: TensorView, storage: Storage, arena: range) -> None:
    address = item.tensor.data_ptr()
    inside = address in arena
    if inside != (storage.kind == "shared"):
        raise UnsupportedModel(f"{item} ({storage.kind}) lies {'inside' if inside else 'outside'} of the arena")
    planned = arena.start + storage.offset + view.offset * item.tensor.element_size()
    if inside and address != planned:
        raise UnsupportedModel(f"{item} lies at byte {address - arena.start} of the arena, not {planned - arena.start}")


def _replaced(planned: list[Any], layout: Layout) -> list[Any]:
    """For each tensor that must be a parameter the one in its place, of which it takes over class and attributes."""
    replaced: list[Any] = [None] * len(layout.tensors)
    views = layout.tensors
    for binding, old in zip(layout.bindings, planned, strict=True):
        number = binding.tensor
        if replaced[number] is None and views[number].parameter:
            replaced[number] = old
    return replaced


def _take_over(made: list[Any], replaced: list[Any], layout: Layout) -> None:
    for tensor, old, view in zip(made, replaced, layout.tensors, strict=True):
        if old is None:
            continue
        if old.requires_grad:
            tensor.requires_grad_()
        if held := old.__dict__:
            tensor.__dict__.update(held)  # weight loaders and the like, as the layer's constructor set them
        if view.attributes:
            tensor.__dict__.update(view.attributes)


def _require_alike(binding: Binding, view: TensorView, old: Found | None) -> None:
    if old is None:
        if view.parameter:
            place = f"{binding.module}.{binding.attribute}"
            raise UnsupportedModel(f"{place} is a parameter of the seed's model, this one has none")
        return
    if old.kind != binding.kind:
        raise UnsupportedModel(f"{old} is a {binding.kind} in the seed's model, here a {old.kind}")
    cls = class_name(type(old.tensor))
    if cls != view.cls and (view.parameter or view.cls != "torch.Tensor"):
        raise UnsupportedModel(f"{old} is a {view.cls} in the seed's model, here a {cls}")
    if not old.tensor.is_meta:
        raise UnsupportedModel(f"{old} was made outside of the meta device, it may belong to another model")


def _bind(module: Any, binding: Binding, tensor: Any) -> None:
    if binding.kind == "parameter":
        module._parameters[binding.attribute] = tensor
    elif binding.kind == "attribute":
        below, name = walk.holder(module, binding.attribute)
        below.__dict__[name] = tensor
    else:
        module._buffers[binding.attribute] = tensor
        if binding.kind == "buffer_non_persistent":
            module._non_persistent_buffers_set.add(binding.attribute)


@cache
def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)
