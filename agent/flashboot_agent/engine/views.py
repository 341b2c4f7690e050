"""Tensors over an arena, as a layout says: the part of attaching that needs torch and nothing of an engine.

It may run in a thread while the process still imports its engine; most of its work is done without the GIL. A shared
storage is viewed where it lies; of every other storage each process gets a private copy. No tensor owns or copies
shared bytes; each keeps the mapping alive.

Two ways, one result. The fast one makes all views in one call through torch's own functions, which torch does not
promise to ship; where one is missing, views are made one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from flashboot_agent import _native
from flashboot_agent.core.errors import BadRequest
from flashboot_agent.engine.collector import collector_paused
from flashboot_agent.engine.installed import torch_libraries
from flashboot_agent.engine.log import log
from flashboot_agent.wire.layout import Layout, LayoutError

_WIDEST: Final = max(_native.LAYOUT_DTYPES.values())


def tensors_of(layout: Layout, base: Any, classes: Sequence[type | None] = ()) -> list[Any]:
    """A plain torch.Tensor per entry of `layout.tensors`, in that order. `base`: flat uint8 over the whole arena.
    `classes`: one per entry, where they are of classes derived from that; no constructor is called.

    Raises BadRequest when that is smaller than the layout says: torch's own function would look beyond its end.
    """
    if base.numel() < layout.arena_bytes:
        raise BadRequest(f"the layout is of an arena of {layout.arena_bytes} bytes; here are {base.numel()}")
    with collector_paused():
        torch = torch_functions()
        made = _at_once(torch, layout, base, classes) if torch is not None else [None] * len(layout.tensors)
        if torch is None or not layout.table.all_in_place:
            _one_by_one(layout, base, made, classes)
    return made


def by_name(layout: Layout, base: Any, into: dict[str, Any] | None = None) -> dict[str, Any]:
    """Every tensor under each of its names, `module.attribute`; a tie is one object under several.

    `base` as for `tensors_of`. `into`: an empty dictionary, which is filled and returned. Raises BadRequest
    as `tensors_of` does, LayoutError when two names are the same.
    """
    named = {} if into is None else into
    try:
        with collector_paused():
            layout.table.by_name(tensors_of(layout, base), named)
    except _native.Malformed as error:
        raise LayoutError(str(error)) from error
    return named


def place_of(name: str) -> tuple[str, str]:
    """Module and attribute of a name, for tensors that come by name and without a model; `by_name` gives it back."""
    module, _, attribute = name.rpartition(".")
    if not attribute or not all(module.split(".")):
        return "", name
    return module, attribute


@cache
def torch_functions() -> _native.Torch | None:
    """None where this torch lacks a function that the fast way needs; told once."""
    import torch

    try:
        # Both are of torch's own compiler, which calls them for every model that it has compiled ahead of time.
        _ = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors, torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
        return _native.Torch(*map(str, torch_libraries()))
    except (AttributeError, RuntimeError) as error:
        log.warning("torch %s: views are made one by one, which takes longer: %s", torch.__version__, error)
        return None


def _at_once(functions: _native.Torch, layout: Layout, base: Any, classes: Sequence[type | None]) -> list[Any]:
    """None for tensors that are not over the arena's own bytes."""
    import torch

    whole = base[: base.numel() // _WIDEST * _WIDEST]
    used = {form[2] for form in layout.table.forms()}
    with torch.no_grad():
        typed = {dtype: whole.view(getattr(torch, dtype)) for dtype in used}
    handles = dict(zip(typed, torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(typed.values())), strict=True))
    try:
        bases = [handles.get(dtype) for dtype in _native.LAYOUT_DTYPES]
        return functions.make_views(layout.table, bases, list(classes))
    finally:
        torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(list(handles.values()))  # and drop them


def _one_by_one(layout: Layout, base: Any, made: list[Any], classes: Sequence[type | None]) -> None:
    """Fill what is None in `made`."""
    import torch

    arena = base.untyped_storage()
    private: dict[int, Any] = {}
    with torch.no_grad():
        for number, view in enumerate(layout.tensors):
            if made[number] is not None:
                continue
            storage = layout.storages[view.storage]
            memory, offset = arena, view.offset
            tensor = torch.empty(0, dtype=getattr(torch, view.dtype))
            if storage.kind == "shared" and storage.bytes:
                offset += storage.offset // tensor.element_size()
            else:
                if view.storage not in private:
                    part = base[storage.offset : storage.offset + storage.bytes]
                    private[view.storage] = torch.empty(storage.bytes, dtype=torch.uint8).copy_(part).untyped_storage()
                memory = private[view.storage]
            made[number] = tensor.set_(memory, offset, view.shape, view.stride)
            if classes and (cls := classes[number]) is not None:
                made[number] = torch.Tensor._make_subclass(cls, made[number], False)
