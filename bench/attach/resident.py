"""A resident model as an agent hands it over, a sealed memfd and its layout; and an empty model for it."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import torch

from bench.load.checkpoint import Spec, files
from flashboot_agent.engine.walk import class_name
from flashboot_agent.memory import memfd
from flashboot_agent.wire.layout import ALIGNMENT, Layout
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView

Tensors = dict[str, Any]
DTYPES = {"F32": "float32", "I32": "int32", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn"}


def opened(folder: Path) -> Tensors:
    """The checkpoint's tensors over the mapped files, as safetensors gives them."""
    from safetensors import safe_open

    result: Tensors = {}
    for file in files(folder):
        with safe_open(file, "pt") as content:
            result |= {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a dict
    return result


def arena(folder: Path, model: list[Spec]) -> tuple[int, dict[str, int]]:
    """A sealed memfd of all tensors, and where each begins."""
    offsets, end = {}, 0
    for spec in model:
        offsets[spec.name] = end
        end = memfd.round_up(end + spec.nbytes, ALIGNMENT)
    descriptor = memfd.create("bench", end)
    with mmap.mmap(descriptor, end) as memory:
        for name, tensor in opened(folder).items():
            data = tensor.reshape(-1).view(torch.uint8).numpy()
            memory[offsets[name] : offsets[name] + len(data)] = data.tobytes()
    memfd.make_immutable(descriptor)
    return descriptor, offsets


def document(model: list[Spec], offsets: dict[str, int], nbytes: int, identity: dict[str, str] | None = None) -> bytes:
    """The layout of that arena, every tensor a parameter."""
    parameter = class_name(torch.nn.Parameter)
    views, bindings = [], []
    for number, spec in enumerate(model):
        stride = torch.empty(spec.shape, device="meta").stride()
        views.append(TensorView(number, 0, spec.shape, stride, DTYPES[spec.dtype], parameter=True, cls=parameter))
        module, _, attribute = spec.name.rpartition(".")
        bindings.append(Binding(module, attribute, "parameter", number))
    return Layout(
        identity=identity or {"model": "bench"},
        arena_bytes=nbytes,
        segments=[Segment(0, nbytes)],
        storages=[Storage(offsets[spec.name], spec.nbytes) for spec in model],
        tensors=views,
        bindings=bindings,
    ).to_bytes()


def on_meta(model: list[Spec]) -> Any:
    """Modules and parameters without memory."""
    root = torch.nn.Module()
    for spec in model:
        at = root
        *path, attribute = spec.name.split(".")
        for part in path:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        empty = torch.empty(spec.shape, dtype=getattr(torch, DTYPES[spec.dtype]), device="meta")
        at.register_parameter(attribute, torch.nn.Parameter(empty, requires_grad=False))
    return root
