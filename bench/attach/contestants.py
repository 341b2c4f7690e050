"""Ways to get 20,000 tensors that another process holds: `python -m bench.attach.contestants NAME FOLDER`.

Runs in the engine's environment (torch, FlashBoot's plug-in). No way copies bytes; each ends with a tensor per name,
and `check` compares every one of them byte for byte with the checkpoint.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from bench.kit import inside
from bench.load.checkpoint import Spec, files, specs
from flashboot_agent.engine import rebind
from flashboot_agent.engine.mapping import as_tensor, map_arena, parse_layout
from flashboot_agent.engine.walk import class_name
from flashboot_agent.memory import memfd
from flashboot_agent.wire.layout import ALIGNMENT, Binding, Layout, Segment, Storage, TensorView

Tensors = dict[str, Any]
Way = Callable[[], Callable[[], Tensors]]
"""Prepares one run (not timed) and returns it."""
DTYPES = {"F32": "float32", "I32": "int32", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn"}
MIB = 1 << 20


def main() -> None:
    torch.set_num_threads(1)
    name, folder, total = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    way: Way = {"flashboot": _flashboot, "views": _views, "torch-multiprocessing": _pickled, "safetensors": _opened}[
        name
    ](folder, specs(total))

    def run(check: bool = False) -> dict[str, Any]:
        prepared = way()
        with inside.Meter() as meter:
            tensors = prepared()
        if check and (wrong := _differences(folder, tensors)):
            raise ValueError(f"{len(wrong)} tensors differ from the checkpoint, first {wrong[0]}")
        return meter.sample

    inside.serve({"run": run})


def _tensors(folder: Path) -> Tensors:
    """Over the mapped files."""
    from safetensors import safe_open

    result: Tensors = {}
    for file in files(folder):
        with safe_open(file, "pt") as content:
            result |= {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a dict
    return result


def _differences(folder: Path, tensors: Tensors) -> list[str]:
    def same(a: Any, b: Any) -> bool:
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(a.view(torch.uint8), b.view(torch.uint8))

    expected = _tensors(folder)
    return [n for n, e in expected.items() if n not in tensors or not same(tensors[n].detach(), e)]


def _arena(folder: Path, model: list[Spec]) -> tuple[int, dict[str, int]]:
    """A sealed memfd of all tensors, and where each begins."""
    offsets, end = {}, 0
    for spec in model:
        offsets[spec.name] = end
        end = memfd.round_up(end + spec.nbytes, ALIGNMENT)
    descriptor = memfd.create("bench", end)
    with mmap.mmap(descriptor, end) as memory:
        for name, tensor in _tensors(folder).items():
            data = tensor.reshape(-1).view(torch.uint8).numpy()
            memory[offsets[name] : offsets[name] + len(data)] = data.tobytes()
    memfd.make_immutable(descriptor)
    return descriptor, offsets


def _flashboot(folder: Path, model: list[Spec]) -> Way:
    """What the plug-in does with what the agent hands over, into a model that was built on the meta device."""
    descriptor, offsets = _arena(folder, model)
    nbytes = os.fstat(descriptor).st_size
    document = _layout(model, offsets, nbytes)

    def way() -> Callable[[], Tensors]:
        shell = _on_meta(model)

        def run() -> Tensors:
            layout = parse_layout(document)
            base = as_tensor(map_arena(descriptor, nbytes, writable=False))
            rebind.install(shell, layout, base)
            rebind.verify(shell, layout, base)
            return dict(shell.named_parameters())

        return run

    return way


def _layout(model: list[Spec], offsets: dict[str, int], nbytes: int) -> bytes:
    parameter = class_name(torch.nn.Parameter)
    views, bindings = [], []
    for number, spec in enumerate(model):
        stride = list(torch.empty(spec.shape, device="meta").stride())
        views.append(
            TensorView(
                storage=number,
                offset=0,
                shape=list(spec.shape),
                stride=stride,
                dtype=DTYPES[spec.dtype],
                parameter=True,
                cls=parameter,
            )
        )
        module, _, attribute = spec.name.rpartition(".")
        bindings.append(Binding(module=module, attribute=attribute, kind="parameter", tensor=number))
    return Layout(
        identity={"model": "bench"},
        arena_bytes=nbytes,
        segments=[Segment(offset=0, bytes=nbytes)],
        storages=[Storage(offset=offsets[spec.name], bytes=spec.nbytes) for spec in model],
        tensors=views,
        bindings=bindings,
    ).to_json()


def _on_meta(model: list[Spec]) -> Any:
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


def _views(folder: Path, model: list[Spec]) -> Way:
    """The least that makes a tensor per name: a mapping and one view each. The limit of pure Python."""
    descriptor, offsets = _arena(folder, model)
    nbytes = os.fstat(descriptor).st_size
    table = [(s.name, getattr(torch, DTYPES[s.dtype]), s.shape, offsets[s.name], s.nbytes) for s in model]

    def run() -> Tensors:
        base = as_tensor(map_arena(descriptor, nbytes, writable=False))
        return {name: base[at : at + size].view(dtype).view(shape) for name, dtype, shape, at, size in table}

    return lambda: run


def _opened(folder: Path, _: list[Spec]) -> Way:
    """safetensors over the page cache: no arena, mapped files."""
    return lambda: lambda: _tensors(folder)


def _pickled(folder: Path, _: list[Spec]) -> Way:
    """A process that holds the tensors in shared memory sends them through a queue of torch.multiprocessing."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    context = torch.multiprocessing.get_context("spawn")
    asked, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=_hold, args=(folder, asked, answers), daemon=True)
    process.start()
    answers.get()

    def run() -> Tensors:
        asked.put(True)
        return dict(answers.get())

    return lambda: run


def _hold(folder: Path, asked: Any, answers: Any) -> None:
    """The other process: all tensors are views of one shared storage, as an arena's would be."""
    torch.multiprocessing.set_sharing_strategy("file_system")
    found = _tensors(folder)
    sizes = {name: memfd.round_up(t.numel() * t.element_size(), ALIGNMENT) for name, t in found.items()}
    base = torch.empty(sum(sizes.values()), dtype=torch.uint8).share_memory_()
    shared, at = {}, 0
    for name, tensor in found.items():
        part = base[at : at + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape)
        shared[name] = part.copy_(tensor)
        at += sizes[name]
    answers.put(True)
    while asked.get():
        answers.put(shared)


if __name__ == "__main__":
    main()
