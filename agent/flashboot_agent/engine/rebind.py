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
from flashboot_agent.engine.walk import Found, class_name
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding, Storage, TensorView


def install(model: Any, layout: Layout, base: Any) -> None:
    """Bind every tensor of `layout` on `model`, which was built on the meta device. `base`: flat uint8 over the arena.

    Raises UnsupportedModel when model and layout differ, naming the first place.
    """
    import torch

    with views.collector_paused(), torch.no_grad():
        modules = walk.modules(model)
        planned = _resolved(modules, layout)
        made = views.tensors_of(layout, base)
        _wrap_parameters(made, planned, layout)
        for binding in layout.bindings:
            _bind(modules[binding.module], binding, made[binding.tensor])


def resolve(model: Any, layout: Layout) -> list[Any]:
    """For each binding the model's tensor on the meta device, or None where only the seed's load made one.

    Changes nothing. Raises UnsupportedModel when model and layout differ, naming the first place.
    """
    with views.collector_paused():
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
    with views.collector_paused():
        _verify(model, layout, base)


def _verify(model: Any, layout: Layout, base: Any) -> None:
    found = {(item.module, item.attribute, item.kind): item for item in walk.tensors(model)}
    places = [(binding.module, binding.attribute, binding.kind) for binding in layout.bindings]
    odd = found.keys() ^ set(places)
    if odd:
        raise UnsupportedModel(f"the model's tensors are not the layout's, first at {min(odd)}")
    firsts: list[Any] = [None] * len(layout.tensors)
    for place, binding in zip(places, layout.bindings, strict=True):
        item, first = found[place], firsts[binding.tensor]
        if first is None:
            firsts[binding.tensor] = item
        elif first.tensor is not item.tensor:
            raise UnsupportedModel(f"{item} is tied to {first} in the seed's model and is not here")
    begin = base.data_ptr()
    arena = range(begin, begin + base.numel())
    for item, view in zip(firsts, layout.tensors, strict=True):
        _require_as_planned(item, view)
        if 0 not in view.shape:
            _require_in_place(item, view, layout.storages[view.storage], arena)
    owners: dict[int, Found] = {}
    for item in firsts:
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


def _wrap_parameters(made: list[Any], planned: list[Any], layout: Layout) -> None:
    """Make parameters of the tensors that must be; each takes over class and attributes of the one in its place."""
    import torch

    wrapped = set()
    for binding, old in zip(layout.bindings, planned, strict=True):
        number = binding.tensor
        view = layout.tensors[number]
        if not view.parameter or number in wrapped:
            continue
        wrapped.add(number)
        # Parameter subclasses have constructors of their own; this is what torch itself uses to make one over a tensor
        parameter = torch.Tensor._make_subclass(type(old), made[number], old.requires_grad)
        parameter.__dict__.update(old.__dict__)  # weight loaders and the like, as the layer's constructor set them
        parameter.__dict__.update(view.attributes)
        made[number] = parameter


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
