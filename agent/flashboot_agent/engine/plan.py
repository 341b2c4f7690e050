"""Where each storage goes: from a loaded model to a Layout, the same for the same model on every machine.

Storages are placed in the order in which the walk meets them, each at the next multiple of ALIGNMENT, all in one
segment: packing frees host memory storage by storage, so that nothing is won by a second. Grouping is by Python
identity first (two names of one tensor object are a tie) and then by storage (two tensors may share bytes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine.marks import is_scalar
from flashboot_agent.engine.walk import Found, class_name
from flashboot_agent.memory.memfd import round_up
from flashboot_agent.wire.layout import ALIGNMENT, Layout, LayoutError, Scalar
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, StorageKind, TensorView

READ_ONLY_BUFFERS: Final = frozenset({"cos_sin_cache", "freqs_cis"})
"""Names of buffers that nothing writes in place, hence safe in read-only memory.

Of every other storage without a parameter each engine works on a private copy: `derived` when the load made all of its
tensors as plain attributes (MLA's `w_kc`), else `runtime`."""

PAGE: Final = 4096


@dataclass(frozen=True)
class Plan:
    layout: Layout
    storages: list[Any]
    """torch storages, in the layout's order."""
    tensors: list[Any]
    """Tensor objects, in the layout's order."""


def plan(
    found: Iterable[Found],
    identity: dict[str, str],
    stamped: dict[str, dict[str, Scalar]],
    structure: str | None = None,
    deleted: dict[str, list[str]] | None = None,
) -> Plan:
    """Plan the arena of a loaded model.

    structure: of the model before its load; stamped, deleted: what that left.

    Raises UnsupportedModel for a tensor that is not dense memory of the host.
    """
    views: list[TensorView] = []
    objects: list[Any] = []
    numbers: dict[int, int] = {}
    bindings: list[Binding] = []
    storages: list[Any] = []
    kinds: list[StorageKind] = []
    storage_numbers: dict[int, int] = {}
    for item in found:
        tensor = item.tensor
        _require_dense(item)
        number = numbers.get(id(tensor))
        if number is None:
            storage = tensor.untyped_storage()
            key = storage.data_ptr() if storage.nbytes() else -1 - len(storages)
            where = storage_numbers.setdefault(key, len(storages))
            if where == len(storages):
                storages.append(storage)
                kinds.append("derived")
            number = numbers[id(tensor)] = len(views)
            objects.append(tensor)
            views.append(_view(tensor, where))
        at = views[number].storage
        if item.kind == "parameter" or item.attribute in READ_ONLY_BUFFERS:
            kinds[at] = "shared"
        elif kinds[at] == "derived" and item.attribute not in stamped.get(item.module, {}):
            kinds[at] = "runtime"
        bindings.append(Binding(module=item.module, attribute=item.attribute, kind=item.kind, tensor=number))
    placed, nbytes = _place([storage.nbytes() for storage in storages], kinds)
    try:
        layout = Layout(
            identity=identity,
            arena_bytes=nbytes,
            segments=[Segment(0, nbytes)],
            storages=placed,
            tensors=views,
            bindings=bindings,
            scalars=stamped,
            deleted=deleted or {},
            structure=structure,
        )
    except LayoutError as error:
        raise UnsupportedModel(f"no layout can carry this model: {error}") from error
    return Plan(layout, storages, objects)


def _place(sizes: list[int], kinds: list[StorageKind]) -> tuple[list[Storage], int]:
    """The storages, and the bytes of the arena: whole pages, at least one."""
    placed: list[Storage] = []
    end = 0
    for nbytes, kind in zip(sizes, kinds, strict=True):
        placed.append(Storage(round_up(end, ALIGNMENT), nbytes, kind))
        end = placed[-1].offset + nbytes
    return placed, max(PAGE, round_up(end, PAGE))


def _view(tensor: Any, storage: int) -> TensorView:
    import torch

    parameter = isinstance(tensor, torch.nn.Parameter)
    held = vars(tensor) if parameter else {}
    return TensorView(
        storage=storage,
        offset=tensor.storage_offset(),
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        parameter=parameter,
        cls=class_name(type(tensor)),
        attributes={key: value for key, value in held.items() if is_scalar(value)},
    )


def _require_dense(item: Found) -> None:
    import torch

    tensor = item.tensor
    if tensor.is_meta:
        raise UnsupportedModel(f"{item} has no memory after the load (it is on the meta device)")
    if tensor.device.type != "cpu":
        raise UnsupportedModel(f"{item} lies on {tensor.device}; this version carries models in host memory only")
    if not isinstance(tensor, torch.nn.Parameter) and vars(tensor):
        raise UnsupportedModel(f"{item} carries {min(vars(tensor))}; only parameters may carry metadata")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
        raise UnsupportedModel(f"{item} is no dense tensor ({tensor.layout}, quantised: {tensor.is_quantized})")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedModel(f"{item} is a conjugated or negated view; call resolve_conj and resolve_neg on it")
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError as error:
        raise UnsupportedModel(f"{item} ({class_name(type(tensor))}) has no memory of its own: {error}") from error
