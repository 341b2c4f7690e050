"""The publisher's face for PyTorch: tensors in, of any device and layout; dense ones on the host are copied once.

Of a DTensor (FSDP2, tensor parallelism) each process adds its own shard, and of replicas one process alone does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import torch

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.sync.shard_writer import ShardWriter
from flashboot_agent.sync.tensors import Box, TensorSpec

DTYPES: Final = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.bool: "BOOL", torch.uint8: "U8",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.uint16: "U16",
    torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
"""As safetensors names them."""


class Adds(Protocol):
    """A Publisher or a ShardWriter."""

    @property
    def tensors(self) -> Mapping[str, TensorSpec]: ...
    def add(self, name: str, data: memoryview, box: Box | None = None) -> None: ...


def specs_of(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Of a state_dict, as it is published. Raises BadRequest for a dtype that safetensors has not."""
    return {name: TensorSpec(_dtype(name, tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}


def add_tensor(to: Adds, name: str, tensor: Any, offsets: Sequence[int] | None = None) -> None:
    """`offsets`: of the tensor in the whole one, where it is a shard; a DTensor knows its own. Raises BadRequest."""
    spec = to.tensors.get(name)
    if spec and spec.dtype != _dtype(name, tensor):
        raise BadRequest(f"{name} is {tensor.dtype}, its versions are {spec.dtype}: cast it before it is added")
    if offsets is None and spec and tuple(tensor.shape) != spec.shape:
        raise BadRequest(f"{name} has shape {tuple(tensor.shape)}, the whole has {spec.shape}: tell a shard's offsets")
    if is_sharded(tensor):
        shard = shard_of(name, tensor)
        if shard is None:
            return
        tensor, own = shard
        offsets = [begin + at for begin, at in zip(offsets or [0] * len(own), own, strict=True)]
    box = None if offsets is None else Box(tuple(offsets), tuple(tensor.shape))
    to.add(name, tensor_bytes(tensor), box)


def add_all(to: Adds, tensors: Mapping[str, Any]) -> None:
    """A whole state_dict; of a DTensor what this process has. What is no DTensor all processes have alike: the
    publisher adds it. Raises BadRequest."""
    for name, tensor in tensors.items():
        if is_sharded(tensor) or not isinstance(to, ShardWriter):
            add_tensor(to, name, tensor)


def is_sharded(tensor: Any) -> bool:
    """Whether it is a DTensor. (Its class is in a part of PyTorch that takes long to import, or is not built.)"""
    return hasattr(tensor, "device_mesh")


def shard_of(name: str, tensor: Any) -> tuple[Any, tuple[int, ...]] | None:
    """What this process is to add of a DTensor, and its offsets: of replicas one process alone adds. Raises
    BadRequest."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise BadRequest(f"{name} is a sum that is not formed yet ({tensor.placements}): redistribute() it first")
    place = tensor.device_mesh.get_coordinate()
    local = tensor.to_local()
    replica = place is None or any(
        at and placement.is_replicate() for at, placement in zip(place, tensor.placements, strict=True)
    )
    if replica or not local.numel():
        return None
    (chunk,) = tensor.__create_chunk_list__()
    if tuple(chunk.sizes) != tuple(local.shape):
        raise BadRequest(
            f"{name}: PyTorch says that this process has {tuple(chunk.sizes)} of {tuple(tensor.shape)}, and it has "
            f"{tuple(local.shape)} ({tensor.placements}): add its to_local() by its offsets"
        )
    return local, tuple(chunk.offsets)


def tensor_bytes(tensor: Any) -> memoryview:
    """Its bytes in the order of rows: its own memory where that is dense and on the host, else a copy."""
    flat = tensor.detach().to("cpu").resolve_neg().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _dtype(name: str, tensor: Any) -> str:
    if (found := DTYPES.get(tensor.dtype)) is None:
        raise BadRequest(f"{name} is {tensor.dtype}, which safetensors has not")
    return found
