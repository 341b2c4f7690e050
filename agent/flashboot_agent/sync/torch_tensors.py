"""The publisher's face for PyTorch: tensors in, of any device and layout; dense ones on the host are copied once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.tensors import Box, TensorSpec

DTYPES: Final = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.bool: "BOOL", torch.uint8: "U8",
    torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64", torch.uint16: "U16",
    torch.uint32: "U32", torch.uint64: "U64",
}  # fmt: skip
"""As safetensors names them."""


def specs_of(tensors: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Of a state_dict, as it is published. Raises BadRequest for a dtype that safetensors has not."""
    return {name: TensorSpec(_dtype(name, tensor), tuple(tensor.shape)) for name, tensor in tensors.items()}


def add_tensor(publisher: Publisher, name: str, tensor: Any, offsets: Sequence[int] | None = None) -> None:
    """`offsets`: of the tensor in the whole one, where it is a shard. Raises BadRequest."""
    spec = publisher.tensors.get(name)
    if spec and spec.dtype != _dtype(name, tensor):
        raise BadRequest(f"{name} is {tensor.dtype}, its versions are {spec.dtype}: cast it before it is added")
    box = None if offsets is None else Box(tuple(offsets), tuple(tensor.shape))
    if box is None and spec and tuple(tensor.shape) != spec.shape:
        raise BadRequest(f"{name} has shape {tuple(tensor.shape)}, the whole has {spec.shape}: tell a shard's offsets")
    publisher.add(name, tensor_bytes(tensor), box)


def add_all(publisher: Publisher, tensors: Mapping[str, Any]) -> None:
    """A whole state_dict. Raises BadRequest."""
    for name, tensor in tensors.items():
        add_tensor(publisher, name, tensor)


def tensor_bytes(tensor: Any) -> memoryview:
    """Its bytes in the order of rows: its own memory where that is dense and on the host, else a copy."""
    flat = tensor.detach().to("cpu").resolve_neg().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _dtype(name: str, tensor: Any) -> str:
    if (found := DTYPES.get(tensor.dtype)) is None:
        raise BadRequest(f"{name} is {tensor.dtype}, which safetensors has not")
    return found
