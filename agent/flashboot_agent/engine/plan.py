"""Where each storage goes: from a loaded model to a Layout, the same for the same model on every machine.

Storages are placed in the order in which the walk meets them, each at the next multiple of ALIGNMENT. Grouping is by
Python identity first (two names of one tensor object are a tie) and then by storage (two tensors may share bytes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine.walk import Found, class_name, is_scalar
from flashboot_agent.memory.memfd import round_up
from flashboot_agent.wire.layout import ALIGNMENT, Binding, Layout, Scalar, Segment, Storage, StorageKind, TensorView

READ_ONLY_BUFFERS: Final = frozenset({"cos_sin_cache"})
"""Names of buffers that nothing writes in place, hence safe in read-only memory.

Every other storage without a parameter is `runtime`: its bytes travel, but each engine works on a private copy."""

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
) -> Plan:
    """Plan the arena of a loaded model. `structure`: of the model before its load.

    Raises UnsupportedModel for a tensor that is not dense memory of the host.
    """
    views: list[TensorView] = []
    objects: list[Any] = []
    numbers: dict[int, int] = {}
    bindings: list[Binding] = []
    storages: list[Any] = []
    shared: list[bool] = []
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
                shared.append(False)
            number = numbers[id(tensor)] = len(views)
            objects.append(tensor)
            views.append(_view(tensor, where))
        if item.kind == "parameter" or item.attribute in READ_ONLY_BUFFERS:
            shared[views[number].storage] = True
        bindings.append(Binding(module=item.module, attribute=item.attribute, kind=item.kind, tensor=number))
    placed, end = _place(storages, shared)
    arena_bytes = max(PAGE, round_up(end, PAGE))
    layout = Layout(
        identity=identity,
        arena_bytes=arena_bytes,
        segments=[Segment(offset=0, bytes=arena_bytes)],
        storages=placed,
        tensors=views,
        bindings=bindings,
        scalars=stamped,
        structure=structure,
    )
    return Plan(layout, storages, objects)


def _place(storages: list[Any], shared: list[bool]) -> tuple[list[Storage], int]:
    placed: list[Storage] = []
    end = 0
    for storage, is_shared in zip(storages, shared, strict=True):
        offset = round_up(end, ALIGNMENT)
        kind: StorageKind = "shared" if is_shared else "runtime"
        placed.append(Storage(offset=offset, bytes=storage.nbytes(), kind=kind))
        end = offset + storage.nbytes()
    return placed, end


def _view(tensor: Any, storage: int) -> TensorView:
    import torch

    parameter = isinstance(tensor, torch.nn.Parameter)
    held = vars(tensor) if parameter else {}
    return TensorView(
        storage=storage,
        offset=tensor.storage_offset(),
        shape=list(tensor.shape),
        stride=list(tensor.stride()),
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
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedModel(f"{item} is no dense tensor ({tensor.layout}, quantised: {tensor.is_quantized})")
