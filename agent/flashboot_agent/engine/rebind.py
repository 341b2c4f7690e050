"""Put a model's tensors over an arena, exactly as the layout says, and prove it.

Two ways, one result. `install` gives a model on the meta device its tensors (attach). `repoint` moves the tensors of a
loaded model, keeping every object (seed). Nothing is changed before everything is resolved; afterwards `verify` walks
the model again and fails on anything left on the meta device or outside of the mapping.
"""

from __future__ import annotations

from typing import Any

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine.walk import Found, class_name, tensors
from flashboot_agent.wire.layout import Binding, Layout, Scalar, TensorView


def install(model: Any, layout: Layout, base: Any) -> None:
    """Bind every tensor of `layout` on `model`, which was built on the meta device. `base`: flat uint8 over the arena.

    Raises UnsupportedModel when model and layout differ, naming the first place.
    """
    import torch

    planned = resolve(model, layout)
    storages = _storages(layout, base)
    made: list[Any] = [None] * len(layout.tensors)
    for binding in layout.bindings:
        if made[binding.tensor] is None:
            view, old = layout.tensors[binding.tensor], planned[binding.module, binding.attribute]
            made[binding.tensor] = _make(view, storages[view.storage], old)
    modules = dict(model.named_modules(remove_duplicate=False))
    with torch.no_grad():
        for binding in layout.bindings:
            _bind(modules[binding.module], binding, made[binding.tensor])


def resolve(model: Any, layout: Layout) -> dict[tuple[str, str], Any]:
    """For each place in the layout the model's tensor on the meta device, or None where only the seed's load made one.

    Changes nothing. Raises UnsupportedModel when model and layout differ, naming the first place.
    """
    rest = {(item.module, item.attribute): item for item in tensors(model)}
    modules = dict(model.named_modules(remove_duplicate=False))
    result: dict[tuple[str, str], Any] = {}
    for binding in layout.bindings:
        if binding.module not in modules:
            raise UnsupportedModel(f"the seed's model has a module {binding.module!r}, this one has not")
        old = rest.pop((binding.module, binding.attribute), None)
        _require_alike(binding, layout.tensors[binding.tensor], old)
        result[binding.module, binding.attribute] = old.tensor if old else None
    if rest:
        first = next(iter(rest.values()))
        raise UnsupportedModel(f"{first} is in this model but not in the seed's, and {len(rest) - 1} more")
    return result


def repoint(objects: list[Any], layout: Layout, base: Any) -> None:
    """Move the tensor objects of a loaded model (in the layout's order) over the arena; runtime storages stay private.

    Every object keeps its identity, class and attributes; the memory it came from is freed with its last tensor.
    """
    import torch

    shared = base.untyped_storage()
    with torch.no_grad():
        for tensor, view in zip(objects, layout.tensors, strict=True):
            storage = layout.storages[view.storage]
            if storage.kind == "shared" and storage.bytes:
                offset = storage.offset // tensor.element_size() + view.offset
                tensor.set_(shared, offset, tuple(view.shape), tuple(view.stride))


def verify(model: Any, layout: Layout, base: Any) -> None:
    """Raises UnsupportedModel unless every tensor lies where the layout says, ties included."""
    begin = base.data_ptr()
    found = list(tensors(model))
    places = [(item.module, item.attribute, item.kind) for item in found]
    expected = [(binding.module, binding.attribute, binding.kind) for binding in layout.bindings]
    if sorted(places) != sorted(expected):
        odd = sorted(set(places) ^ set(expected)) or places
        raise UnsupportedModel(f"the model's tensors are not the layout's, first at {odd[0]}")
    by_place = {(item.module, item.attribute): item for item in found}
    objects: dict[int, int] = {}
    for binding in layout.bindings:
        item = by_place[binding.module, binding.attribute]
        _require_in_place(item, layout, layout.tensors[binding.tensor], begin)
        if objects.setdefault(binding.tensor, id(item.tensor)) != id(item.tensor):
            raise UnsupportedModel(f"{item} is tied in the seed's model and is not here")


def _require_in_place(item: Found, layout: Layout, view: TensorView, begin: int) -> None:
    tensor, storage = item.tensor, layout.storages[view.storage]
    if tensor.is_meta:
        raise UnsupportedModel(f"{item} is still on the meta device")
    shape = (list(tensor.shape), list(tensor.stride()), str(tensor.dtype))
    if shape != (view.shape, view.stride, f"torch.{view.dtype}"):
        raise UnsupportedModel(f"{item} is {shape}, the layout says {view.shape}, {view.stride}, {view.dtype}")
    inside = tensor.untyped_storage().data_ptr() == begin
    if storage.bytes and inside != (storage.kind == "shared"):
        raise UnsupportedModel(f"{item} ({storage.kind}) lies {'inside' if inside else 'outside'} of the arena")
    if (
        inside
        and tensor.storage_offset() * tensor.element_size() != storage.offset + view.offset * tensor.element_size()
    ):
        raise UnsupportedModel(f"{item} lies at another offset than the layout says")


def _storages(layout: Layout, base: Any) -> list[tuple[Any, int]]:
    """For each storage the memory to view and the byte where it begins."""
    import torch

    result: list[tuple[Any, int]] = []
    for storage in layout.storages:
        if storage.kind == "shared" and storage.bytes:
            result.append((base.untyped_storage(), storage.offset))
            continue
        private = torch.empty(storage.bytes, dtype=torch.uint8)
        private.copy_(base[storage.offset : storage.offset + storage.bytes])
        result.append((private.untyped_storage(), 0))
    return result


def _make(view: TensorView, memory: tuple[Any, int], old: Any) -> Any:
    import torch

    storage, begin = memory
    dtype = getattr(torch, view.dtype)
    with torch.no_grad():
        tensor = torch.empty(0, dtype=dtype)
        tensor.set_(storage, begin // tensor.element_size() + view.offset, tuple(view.shape), tuple(view.stride))
        if not view.parameter:
            return tensor
        # Parameter subclasses have constructors of their own; this is what torch itself uses to make one over a tensor
        parameter = torch.Tensor._make_subclass(type(old), tensor, old.requires_grad)
    parameter.__dict__.update(old.__dict__)  # weight loaders and the like, as the constructor of the layer set them
    parameter.__dict__.update(view.attributes)
    return parameter


def _require_alike(binding: Binding, view: TensorView, old: Found | None) -> None:
    place = f"{binding.module}.{binding.attribute}"
    if old is None:
        if view.parameter:
            raise UnsupportedModel(f"{place} is a parameter of the seed's model, this one has none")
        return
    if old.kind != binding.kind:
        raise UnsupportedModel(f"{place} is a {binding.kind} in the seed's model, here a {old.kind}")
    if class_name(type(old.tensor)) != view.cls and (view.parameter or view.cls != "torch.Tensor"):
        raise UnsupportedModel(f"{place} is a {view.cls} in the seed's model, here a {class_name(type(old.tensor))}")
    if not old.tensor.is_meta:
        raise UnsupportedModel(f"{place} was made outside of the meta device, it may belong to another model")


def _bind(module: Any, binding: Binding, tensor: Any) -> None:
    if binding.kind == "parameter":
        module._parameters[binding.attribute] = tensor
    elif binding.kind == "attribute":
        module.__dict__[binding.attribute] = tensor
    else:
        module._buffers[binding.attribute] = tensor
        if binding.kind == "buffer_non_persistent":
            module._non_persistent_buffers_set.add(binding.attribute)


def apply_marks(model: Any, stamped: dict[str, dict[str, Scalar]], now: dict[str, dict[str, Scalar]]) -> None:
    """Give modules the scalars that the seed's load stamped on them; objects must have come by construction.

    Raises UnsupportedModel for an object that only the seed's load made.
    """
    modules = dict(model.named_modules())
    for name, attributes in stamped.items():
        for attribute, value in attributes.items():
            have = now.get(name, {}).get(attribute)
            if have == value and type(have) is type(value):
                continue
            if isinstance(value, str) and value.startswith("<"):
                raise UnsupportedModel(
                    f"the load left an object {value} at {name}.{attribute} of the seed's model; here is {have!r}"
                )
            setattr(modules[name], attribute, value)
