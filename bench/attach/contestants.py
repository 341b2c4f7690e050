"""Ways to get 20,000 tensors that another process holds: `python -m bench.attach.contestants NAME FOLDER BYTES`.

Runs in the engine's environment (torch, FlashBoot's plug-in). No way copies bytes; each ends with a tensor per name,
and `check` compares every one of them byte for byte with the checkpoint.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from bench.attach import resident
from bench.attach.agent import Agent
from bench.attach.resident import DTYPES, Tensors
from bench.kit import inside
from bench.load.checkpoint import Spec, specs
from flashboot_agent.api import Request
from flashboot_agent.engine import rebind, views
from flashboot_agent.engine.mapping import as_tensor, map_arena, parse_layout
from flashboot_agent.memory import memfd
from flashboot_agent.wire.layout import ALIGNMENT

Way = Callable[[], Callable[[], Tensors]]
"""Prepares one run (not timed) and returns it."""
_FRESH_SECONDS = 120.0


def main() -> None:
    torch.set_num_threads(1)
    name, folder, model = sys.argv[1], Path(sys.argv[2]), specs(int(sys.argv[3]))
    if name == "process":
        inside.serve({"run": _processes(folder, model)})
        return
    ways = {
        "dict": _by_name,
        "model": _model,
        "views": _views,
        "torch-multiprocessing": _pickled,
        "safetensors": _opened,
    }
    way: Way = ways[name](folder, model)

    def run(check: bool = False) -> dict[str, Any]:
        prepared = way()
        with inside.Meter() as meter:
            tensors = prepared()
        if check and (wrong := _differences(folder, tensors)):
            raise ValueError(f"{len(wrong)} tensors differ from the checkpoint, first {wrong[0]}")
        return meter.sample

    inside.serve({"run": run})


def _differences(folder: Path, tensors: Tensors) -> list[str]:
    def same(a: Any, b: Any) -> bool:
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(a.view(torch.uint8), b.view(torch.uint8))

    expected = resident.opened(folder)
    return [n for n, e in expected.items() if n not in tensors or not same(tensors[n].detach(), e)]


def _by_name(folder: Path, model: list[Spec]) -> Way:
    """What the public API does with what the agent hands over: a dictionary of tensors."""
    descriptor, offsets = resident.arena(folder, model)
    nbytes = os.fstat(descriptor).st_size
    document = resident.document(model, offsets, nbytes)

    def run() -> Tensors:
        layout = parse_layout(document)
        return views.by_name(layout, as_tensor(map_arena(descriptor, nbytes, writable=False)))

    return lambda: run


def _model(folder: Path, model: list[Spec]) -> Way:
    """What the plug-in does with it: every tensor bound on a model that was built on the meta device, and verified."""
    descriptor, offsets = resident.arena(folder, model)
    nbytes = os.fstat(descriptor).st_size
    document = resident.document(model, offsets, nbytes)

    def way() -> Callable[[], Tensors]:
        shell = resident.on_meta(model)

        def run() -> Tensors:
            layout = parse_layout(document)
            base = as_tensor(map_arena(descriptor, nbytes, writable=False))
            rebind.install(shell, layout, base)
            rebind.verify(shell, layout, base)
            return dict(shell.named_parameters())

        return run

    return way


def _processes(folder: Path, model: list[Spec]) -> Callable[..., dict[str, Any]]:
    """Fresh processes (bench/attach/fresh.py) that import what engines import, with and without an attach after it."""
    descriptor, offsets = resident.arena(folder, model)
    path = Path(tempfile.mkdtemp(prefix="fb-")) / "agent.sock"  # short: a socket's path has at most 107 bytes
    identity = Request(model="bench", revision="1", socket=str(path)).full_identity()  # as fresh.py asks
    document = resident.document(model, offsets, os.fstat(descriptor).st_size, identity)
    Agent(path, descriptor, document, identity)

    # An installed package has its bytecode beside it; the first round, which is dropped, makes it here.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def run(attach: bool = True) -> dict[str, Any]:
        words = [sys.executable, "-m", "bench.attach.fresh", *([str(path)] if attach else [])]
        began, used = time.perf_counter(), _children_seconds()
        done = subprocess.run(words, env=env, capture_output=True, timeout=_FRESH_SECONDS, check=True)
        sample = json.loads(done.stdout)
        if attach and sample["tensors"] != len(model):
            raise ValueError(f"{sample['tensors']} tensors instead of {len(model)}")
        return {"seconds": time.perf_counter() - began, "cpu": _children_seconds() - used, **sample}

    return run


def _children_seconds() -> float:
    """CPU time, user and system, of all children that ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _views(folder: Path, model: list[Spec]) -> Way:
    """The least that makes a tensor per name: a mapping and one view each. The limit of pure Python."""
    descriptor, offsets = resident.arena(folder, model)
    nbytes = os.fstat(descriptor).st_size
    table = [(s.name, getattr(torch, DTYPES[s.dtype]), s.shape, offsets[s.name], s.nbytes) for s in model]

    def run() -> Tensors:
        base = as_tensor(map_arena(descriptor, nbytes, writable=False))
        return {name: base[at : at + size].view(dtype).view(shape) for name, dtype, shape, at, size in table}

    return lambda: run


def _opened(folder: Path, _: list[Spec]) -> Way:
    """safetensors over the page cache: no arena, mapped files."""
    return lambda: lambda: resident.opened(folder)


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
    found = resident.opened(folder)
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
