"""All tensors that a model is made of, by their place.

One walk serves the seed (what must be packed), the attaching engine (what must be bound) and the tests (what must be
equal). Modules are visited under every path, so that a tie shows as one object under two names. A model has tens of
thousands of tensors, and all of this runs under the GIL: nothing is done per module or tensor that need not be.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.wire.layout_entries import BindingKind

HELD_BELOW: Final[dict[str, tuple[str, ...]]] = {"topk_config": ("correction_bias",)}
"""Attribute of a module → fields of the object there that refer to a tensor which a module holds, too.

The place of such a tensor is written with a dot (`topk_config.correction_bias`). Any other tensor below a module that
an attaching engine would not have is refused."""

METHODS: Final = ("quant_method", "scheme")
"""Objects below modules whose fields a load may change: SGLang's quantisation methods."""

_CLASS_NAMES: dict[type, str] = {}
_MAX_DEPTH = 6
_PLAIN: Final = frozenset((type(None), bool, int, float, str))
"""What most attributes are, and no tensor is."""


class Found(NamedTuple):
    """A tensor at one of its places."""

    module: str
    attribute: str
    kind: BindingKind
    tensor: Any

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}" if self.module else self.attribute


def modules(model: Any) -> dict[str, Any]:
    """Path → module, as `named_modules(remove_duplicate=False)` has it, without a generator for each level."""
    found: dict[str, Any] = {}
    rest = [("", model)]
    while rest:
        path, module = rest.pop()
        found[path] = module
        if below := module._modules:
            front = f"{path}." if path else ""
            rest += [(front + key, child) for key, child in reversed(below.items()) if child is not None]
    return found


def tensors(model: Any) -> Iterator[Found]:
    """All parameters, buffers and plain tensor attributes of all modules, in a fixed order."""
    return tensors_in(modules(model))


def tensors_in(found: dict[str, Any]) -> Iterator[Found]:
    """`tensors` of a model whose `modules` these are."""
    import torch

    common, plain, tensor = _common_attributes(), _PLAIN, torch.Tensor
    for name, module in found.items():
        for key, value in module._parameters.items():
            if value is not None:
                yield Found(name, key, "parameter", value)
        for key, value in module._buffers.items():
            if value is not None:
                passing = key in module._non_persistent_buffers_set
                yield Found(name, key, "buffer_non_persistent" if passing else "buffer", value)
        held = vars(module)
        if held.keys() <= common:
            continue
        for key, value in list(held.items()):
            if key in common or type(value) in plain:
                continue
            if isinstance(value, tensor):
                yield Found(name, key, "attribute", value)
            elif key in HELD_BELOW:
                for field in HELD_BELOW[key]:
                    below = getattr(value, field, None)
                    if isinstance(below, tensor):
                        yield Found(name, f"{key}.{field}", "attribute", below)


def holder(module: Any, attribute: str) -> tuple[Any, str]:
    """Who has an attribute by its name in a layout: the module, or with a dot an object below it that is on our lists.

    Raises AttributeError when there is no such object, or it is none of ours to look into.
    """
    below, dot, last = attribute.partition(".")
    if not dot:
        return module, attribute
    if (below not in HELD_BELOW and below not in METHODS) or below not in vars(module):
        raise AttributeError(below)
    return vars(module)[below], last


def hidden_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Tensors that no module holds directly: in lists, dictionaries, and objects that modules refer to.

    Such a tensor can't be bound by name; a model that has one with bytes is refused.
    """
    seen: set[int] = set()
    for name, module in modules(model).items():
        for key, value in own(module):
            path, known = f"{name}.{key}" if name else key, HELD_BELOW.get(key, ())
            bound = {f"{path}.{field}" for field in known}
            found = _inside(path, value, seen, _MAX_DEPTH, top=True)
            yield from ((place, tensor) for place, tensor in found if place not in bound)


def _inside(path: str, value: Any, seen: set[int], depth: int, *, top: bool = False) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(value, torch.Tensor):
        if not top:
            yield path, value
        return
    plain = value is None or isinstance(value, str | bytes | int | float | type | torch.nn.Module)
    if plain or callable(value) or depth == 0 or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _inside(f"{path}[{key!r}]", item, seen, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield from _inside(f"{path}[{number}]", item, seen, depth - 1)
    else:
        for key, item in _fields(value):
            yield from _inside(f"{path}.{key}", item, seen, depth - 1)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    yield from held.items()
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            try:
                yield slot, object.__getattribute__(value, slot)
            except AttributeError:
                continue  # a slot that was never set


def require_none_hidden(shadow: Any, loaded: Any = None) -> None:
    """Raises UnsupportedModel for a tensor that no binding reaches and that an attaching engine would not have.

    `shadow` was built on the meta device: what hides there without memory can't be given any. What hides in `loaded`
    alone was made by the load, which an attaching engine does not do. (Both see tensors of the process, as in groups.)
    """
    known = dict(hidden_tensors(shadow))
    lost = [path for path, tensor in known.items() if tensor.is_meta and tensor.numel()]
    if loaded is not None:
        lost += [path for path, tensor in hidden_tensors(loaded) if path not in known and tensor.numel()]
    if lost:
        raise UnsupportedModel(f"{lost[0]} is a tensor that no module holds directly; FlashBoot can't bind it")


def class_name(cls: type) -> str:
    name = _CLASS_NAMES.get(cls)
    if name is None:
        name = _CLASS_NAMES[cls] = f"{cls.__module__}.{cls.__qualname__}"
    return name


def own(module: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of this module that torch.nn.Module does not give to every module."""
    common = _common_attributes()
    for key, value in list(vars(module).items()):
        if key not in common:
            yield key, value


@cache
def _common_attributes() -> frozenset[str]:
    import torch

    return frozenset(vars(torch.nn.Module()))
