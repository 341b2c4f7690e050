"""What modules carry beside the bytes of tensors, and what loading changed of it.

Two snapshots around SGLang's load tell what it stamped (`stamped`) and what it removed (`deleted`); both travel in the
layout, because an attaching engine runs no load. Values that the construction left are not looked at: they may belong
to the process (a device number). A mark is a scalar, or `<…>` for what can't travel: an object by its class, a
collection with everything in it, a tensor by its kind and class (its bytes travel elsewhere).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from typing import Any, Final

from flashboot_agent.engine.walk import METHODS, class_name, own
from flashboot_agent.wire.layout import Scalar
from flashboot_agent.wire.layout_entries import BindingKind

_MAX_DEPTH: Final = 4

Marks = dict[str, dict[str, Scalar]]
"""Module path → attribute (with a dot for a field of a quantisation method) → mark."""

Names = dict[str, set[str]]
"""Module path → names of everything on it: parameters, buffers, modules, attributes, fields of its methods."""


def marks(model: Any) -> Marks:
    """A snapshot."""
    return {name: dict(_of_module(module)) for name, module in model.named_modules()}


def names(model: Any) -> Names:
    """A snapshot of what is there at all."""
    found: Names = {}
    for name, module in model.named_modules():
        here = {key for key, _ in own(module)} | {*module._parameters, *module._buffers, *module._modules}
        here |= {f"{key}.{field}" for key, method in _methods(module) for field in vars(method)}
        found[name] = here
    return found


def stamped(before: Marks, after: Marks) -> Marks:
    """What the load left that was not so before."""
    result: Marks = {}
    for name, attributes in after.items():
        old = before.get(name, {})
        changed = {key: value for key, value in attributes.items() if key not in old or not same(old[key], value)}
        if changed:
            result[name] = changed
    return result


def deleted(before: Names, after: Names) -> dict[str, list[str]]:
    """What the load removed from modules that are still there; of an object that is gone not its fields, too."""
    gone: dict[str, list[str]] = {}
    for name in sorted(before.keys() & after.keys()):
        lost = before[name] - after[name]
        if lost:
            gone[name] = sorted(each for each in lost if "." not in each or each.partition(".")[0] not in lost)
    return gone


def of(holder: Any, attribute: str) -> Scalar:
    """The mark of one attribute as it is now; `<nothing>` where there is none."""
    for kind, table in _tables(holder):
        if attribute in table:
            value = table[attribute]
            return None if value is None else _tensor(kind, value)
    if attribute not in vars(holder):
        return "<nothing>"
    value = vars(holder)[attribute]
    return _tensor("attribute", value) if _is_tensor(value) else mark(value)


def same(one: Scalar, other: Scalar) -> bool:
    """Equal, and of one type: True is not 1."""
    return type(one) is type(other) and one == other


def mark(value: Any) -> Scalar:
    """A scalar as it is, anything else as `<…>`."""
    if is_scalar(value) and not (isinstance(value, str) and value.startswith("<")):
        return value  # type: ignore[no-any-return] # a Scalar by is_scalar
    return f"<{_text(value, _MAX_DEPTH)}>"


def is_scalar(value: Any) -> bool:
    """What JSON carries exactly."""
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    return value is None or type(value) in (bool, str)


def _of_module(module: Any) -> Iterator[tuple[str, Scalar]]:
    for kind, table in _tables(module):
        for key, value in table.items():
            yield key, None if value is None else _tensor(kind, value)
    for key, value in own(module):
        yield key, _tensor("attribute", value) if _is_tensor(value) else mark(value)
    for key, method in _methods(module):
        for field, value in vars(method).items():
            yield f"{key}.{field}", _tensor("attribute", value) if _is_tensor(value) else mark(value)


def _tables(holder: Any) -> Iterator[tuple[BindingKind, dict[str, Any]]]:
    import torch

    if isinstance(holder, torch.nn.Module):
        passing = holder._non_persistent_buffers_set
        yield "parameter", holder._parameters
        yield "buffer", {key: value for key, value in holder._buffers.items() if key not in passing}
        yield "buffer_non_persistent", {key: value for key, value in holder._buffers.items() if key in passing}


def _methods(module: Any) -> Iterator[tuple[str, Any]]:
    for key in METHODS:
        method = vars(module).get(key)
        if method is not None and hasattr(method, "__dict__"):
            yield key, method


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _tensor(kind: BindingKind, value: Any) -> str:
    """Kind, class, whether it wants gradients and (of a parameter) the names of what it carries."""
    carried = sorted(vars(value)) if kind == "parameter" else []
    return f"<{' '.join((kind, class_name(type(value)), str(bool(value.requires_grad)).lower(), *carried))}>"


def _text(value: Any, depth: int) -> str:
    cls = class_name(type(value))
    if isinstance(value, enum.Enum):
        return f"{cls}.{value.name}"
    if is_scalar(value) or isinstance(value, float):
        return repr(value)
    if not depth or not isinstance(value, dict | list | tuple | set | frozenset):
        return cls
    if isinstance(value, dict):
        items = [f"{_text(key, depth - 1)}: {_text(item, depth - 1)}" for key, item in value.items()]
    else:
        items = [_text(item, depth - 1) for item in value]
    return f"{cls} [{', '.join(sorted(items) if isinstance(value, set | frozenset) else items)}]"
