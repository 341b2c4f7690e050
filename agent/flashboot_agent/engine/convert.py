"""New weights by the engine's own loading and post-processing, unit by unit: where tensors are derived or repacked.

A unit is a decoder layer; what is outside of all layers is the last one. The tensors of a unit are fetched and loaded,
the unit is post-processed, its storages are given to the caller and then let go, so that memory is needed for about one
unit: the pages of an empty model come with the first byte that is written to them.

Holds always: a storage is given once, after its unit's tensors were loaded. A loader that reaches back into a unit
which was given finds tensors without elements, and fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from flashboot_agent.delta.permutation import Tensor
from flashboot_agent.engine import forms, walk
from flashboot_agent.engine.feed import Feed, Fetch, fetched
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding


class Part(NamedTuple):
    """A storage of the arena's next version. The memory may be kept; the model lets go of it."""

    storage: int
    """Its number in the layout."""
    offset: int
    data: memoryview


def convert(
    layout: Layout, tensors: Sequence[Tensor], fetch: Fetch, feed: Feed, *, runtime: bool = False
) -> Iterator[Part]:
    """Every storage of the arena, `runtime` or not those that engines write to.

    tensors: all that the trainer has; fetch: the new values of each, asked for once.

    Raises IdentityMismatch, BadRequest, SeedFailed; UnsupportedModel when the model is not the arena's.
    """
    feed.require(layout)
    model = feed.empty()
    modules = walk.modules(model)
    units = _units(modules)
    mine: dict[str, list[Tensor]] = {path: [] for path in ("", *units)}
    for tensor in tensors:
        mine[_unit(tensor.name, units)].append(tensor)
    bindings = _by_unit(layout, units)
    done: set[int] = set()
    _load(model, mine[""], fetch, feed)  # a name may hide that it belongs to a unit: before all of them
    for path in units:
        _load(model, mine[path], fetch, feed)
        feed.postprocess(modules[path], done)
        found = forms.found_in(_below(modules[path], path))
        yield from _parts(found, bindings[path], layout, runtime)
        _let_go(found[binding.module, binding.attribute] for binding in bindings[path])
    feed.postprocess(model, done)
    yield from _parts(forms.found_in(_below(model, "")), bindings[""], layout, runtime)


def _units(modules: dict[str, Any]) -> list[str]:
    """Paths of the members of the outermost lists of modules."""
    import torch

    found: list[str] = []
    for path in modules:
        parent, _, _ = path.rpartition(".")
        if path and isinstance(modules[parent], torch.nn.ModuleList) and not _unit(parent, found):
            found.append(path)
    return found


def _unit(name: str, units: Iterable[str]) -> str:
    """The unit whose path leads to this name; empty: none."""
    parts, known = name.split("."), set(units)
    paths = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((path for path in paths if path in known), "")


def _by_unit(layout: Layout, units: list[str]) -> dict[str, list[Binding]]:
    """What lies in storages that one unit alone knows is the unit's, the rest nobody's (an empty path)."""
    owners: dict[int, set[str]] = {}
    for binding in layout.bindings:
        owners.setdefault(layout.tensors[binding.tensor].storage, set()).add(_unit(binding.module, units))
    found: dict[str, list[Binding]] = {path: [] for path in ("", *units)}
    for binding in layout.bindings:
        mine = owners[layout.tensors[binding.tensor].storage]
        found[min(mine) if len(mine) == 1 else ""].append(binding)
    return found


def _load(model: Any, tensors: list[Tensor], fetch: Fetch, feed: Feed) -> None:
    if tensors:
        feed.load_into(model, [(tensor.name, fetched(fetch, tensor)) for tensor in tensors])


def _below(root: Any, path: str) -> dict[str, Any]:
    """The unit's modules by their paths in the model: post-processing may have changed them."""
    return {".".join(filter(None, (path, name))): module for name, module in walk.modules(root).items()}


def _parts(found: dict[forms.Place, Any], bindings: list[Binding], layout: Layout, runtime: bool) -> Iterator[Part]:
    for number, storage in forms.storages_of(found, bindings, layout).items():
        place = layout.storages[number]
        if place.bytes and (runtime or place.kind != "runtime"):
            yield Part(number, place.offset, memoryview(forms.bytes_of(storage)))


def _let_go(tensors: Iterable[Any]) -> None:
    import torch

    with torch.no_grad():
        for tensor in tensors:
            tensor.set_(torch.empty(0, dtype=tensor.dtype).untyped_storage(), 0, (0,), (1,))
