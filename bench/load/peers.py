"""Other loaders, one a process, in the peers' environment: `python -m bench.load.peers LOADER FOLDER`.

Each loads every tensor of the checkpoint into private CPU memory and keeps the tensors until the time is taken; one
that would only map the file makes a copy of each tensor, since a mapping is no load. Torch has one thread.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.kit import inside

Tensors = dict[str, Any]
Loader = Callable[[list[str]], tuple[Tensors, Callable[[], None]]]
"""Files → the tensors, and what gives their memory back."""
_libc = ctypes.CDLL("libc.so.6")


def _nothing() -> None:
    pass


def load_file(files: list[str]) -> tuple[Tensors, Callable[[], None]]:
    from safetensors.torch import load_file as load

    return {name: tensor.clone() for file in files for name, tensor in load(file).items()}, _nothing


def safe_open(files: list[str]) -> tuple[Tensors, Callable[[], None]]:
    from safetensors import safe_open as opened

    result = {}
    for file in files:
        with opened(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dict
                result[name] = content.get_tensor(name).clone()
    return result, _nothing


def fastsafetensors(files: list[str]) -> tuple[Tensors, Callable[[], None]]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), "cpu", nogds=True, max_threads=16)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device()

    def close() -> None:
        buffers.close()
        loader.close()

    return {name: buffers.get_tensor(name) for name in loader.get_keys()}, close


def runai(files: list[str]) -> tuple[Tensors, Callable[[], None]]:
    from runai_model_streamer import SafetensorsStreamer

    result = {}
    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        for name, tensor in streamer.get_tensors():
            result[name] = tensor
    return result, _nothing


def flashpack(files: list[str]) -> tuple[Tensors, Callable[[], None]]:
    """With its parallel read, which is its fastest way into CPU memory."""
    from flashpack.deserialization import iterate_from_flash_tensor, read_flashpack_file

    os.environ["FLASHPACK_CPU_PARALLEL_READ"] = "1"
    storage, metadata = read_flashpack_file(files[0], "cpu")
    return dict(iterate_from_flash_tensor(storage, metadata)), _nothing


LOADERS: dict[str, Loader] = {
    "safetensors-load_file": load_file,
    "safetensors-safe_open": safe_open,
    "fastsafetensors": fastsafetensors,
    "runai-model-streamer": runai,
    "flashpack": flashpack,
}


def convert(folder: Path, into: Path) -> None:
    """Write the checkpoint as one flashpack file."""
    from flashpack.serialization import pack_to_file
    from safetensors.torch import load_file as load

    tensors = {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load(file).items()}
    pack_to_file(tensors, str(into), None)


def differences(folder: Path, tensors: Tensors) -> list[str]:
    """Names of tensors that are missing or not, byte for byte and in type and shape, what the checkpoint says."""
    from safetensors import safe_open as opened

    wrong = []
    for file in sorted(folder.glob("*.safetensors")):
        with opened(file, "pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dict
                expected, tensor = content.get_tensor(name), tensors.get(name)
                if (
                    tensor is None
                    or (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape)
                    or not torch.equal(tensor.contiguous().view(torch.uint8), expected.view(torch.uint8))
                ):
                    wrong.append(name)
    return wrong


def main() -> None:
    if sys.argv[1] == "convert":
        convert(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    name, folder, files = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    loader = LOADERS[name]

    def run(check: bool = False) -> dict[str, Any]:
        gc.collect()
        _libc.malloc_trim(
            0
        )  # what an earlier run freed must not be resident already: a load into a new process is meant
        with inside.Meter() as meter:
            tensors, close = loader(files)
        wrong = differences(folder, tensors) if check else []
        del tensors
        close()
        if wrong:
            raise ValueError(f"{len(wrong)} tensors differ from the checkpoint, first {wrong[0]}")
        return meter.sample

    inside.serve({"run": run})


if __name__ == "__main__":
    main()
