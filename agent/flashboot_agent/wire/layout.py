"""The layout document: where every tensor of a rank lies in its arena, and what makes a rebind exact.

Written by the seed's plug-in, carried as opaque bytes by agents and over the wire, read again by every attaching
plug-in. Storage-centred: storages hold bytes, tensors are views on storages, bindings put tensors on modules. Two
bindings of one tensor id are the same Python object (a tie).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from flashboot_agent.wire.base import Digest, WireModel

ALIGNMENT: Final = 512
"""Bytes that every storage's offset is a multiple of: enough for any vector load and for device copies."""

StorageKind = Literal["shared", "derived", "runtime"]
BindingKind = Literal["parameter", "buffer", "buffer_non_persistent", "attribute"]
Scalar = bool | int | float | str | None


class Segment(WireModel):
    offset: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(gt=0)]


class Storage(WireModel):
    offset: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0)]
    kind: StorageKind = "shared"


class TensorView(WireModel):
    storage: Annotated[int, Field(ge=0)]
    """Index into `storages`."""
    offset: Annotated[int, Field(ge=0)]
    """Elements from the start of the storage."""
    shape: list[Annotated[int, Field(ge=0)]]
    stride: list[Annotated[int, Field(ge=0)]]
    dtype: str
    """As torch prints it, without the prefix: `bfloat16`."""
    parameter: bool
    """A torch.nn.Parameter (or subclass) rather than a plain tensor."""
    cls: str
    """Qualified class of the tensor object."""
    attributes: dict[str, Scalar] = {}


class Binding(WireModel):
    module: str
    attribute: str
    kind: BindingKind
    tensor: Annotated[int, Field(ge=0)]
    """Index into `tensors`."""


class Layout(WireModel):
    schema_version: Literal[1] = 1
    identity: dict[str, str]
    arena_bytes: Annotated[int, Field(gt=0)]
    segments: list[Segment]
    storages: list[Storage]
    tensors: list[TensorView]
    bindings: list[Binding]
    scalars: dict[str, dict[str, Scalar]] = {}
    """Module path → attribute → value, for scalars that loading and post-processing stamped on modules.

    An object other than a scalar or a tensor stands as `<its.qualified.class>`: it can't travel, so it must be there by
    construction, or the attaching engine refuses."""

    deleted: dict[str, list[str]] = {}
    """Module path → names of attributes that the model has by construction and that loading removes, in any order.

    Tensors (an unpacked weight) as well as scalars and objects; the attaching engine removes them before it binds."""

    structure: Digest | None = None
    """Of the seed's model before its load (engine/structure.py); None where the arena was not filled from a model."""

    @model_validator(mode="after")
    def _everything_lies_inside(self) -> Layout:
        end = 0
        for segment in sorted(self.segments, key=lambda s: s.offset):
            if segment.offset != end:
                raise ValueError(f"segments leave a gap or overlap at byte {end}")
            end = segment.offset + segment.bytes
        if end != self.arena_bytes:
            raise ValueError(f"segments end at byte {end}, the arena at {self.arena_bytes}")
        end = 0
        for number, storage in sorted(enumerate(self.storages), key=lambda item: item[1].offset):
            if storage.offset % ALIGNMENT:
                raise ValueError(f"storage {number} begins at {storage.offset}, not a multiple of {ALIGNMENT}")
            if storage.offset < end:
                raise ValueError(f"storage {number} begins at {storage.offset}, inside the one that ends at {end}")
            end = storage.offset + storage.bytes
        if end > self.arena_bytes:
            raise ValueError(f"the last storage ends at byte {end}, the arena at {self.arena_bytes}")
        for number, tensor in enumerate(self.tensors):
            if tensor.storage >= len(self.storages):
                raise ValueError(f"tensor {number} names storage {tensor.storage} of {len(self.storages)}")
            if len(tensor.shape) != len(tensor.stride):
                raise ValueError(f"tensor {number} has {len(tensor.shape)} sizes and {len(tensor.stride)} strides")
        for binding in self.bindings:
            if binding.tensor >= len(self.tensors):
                raise ValueError(f"{binding.module}.{binding.attribute} names tensor {binding.tensor}")
        return self
