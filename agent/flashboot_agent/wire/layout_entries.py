"""What a layout lists: segments of the arena, storages in them, tensors on storages, and where tensors are bound.

Apart from the layout itself, which hands out tensors by name without making any of these: an engine that attaches
imports nothing that it does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from flashboot_agent.wire.layout_head import Scalar

StorageKind = Literal["shared", "derived", "runtime"]
BindingKind = Literal["parameter", "buffer", "buffer_non_persistent", "attribute"]
STORAGE_KINDS: Final[tuple[StorageKind, ...]] = get_args(StorageKind)
BINDING_KINDS: Final[tuple[BindingKind, ...]] = get_args(BindingKind)


class Segment(NamedTuple):
    """A piece of the arena that is one allocation; segments follow each other without a gap."""

    offset: int
    bytes: int


class Storage(NamedTuple):
    offset: int
    """Bytes from the start of the arena, a multiple of ALIGNMENT; in rising order."""
    bytes: int
    """Inside of one segment. Zero: tensors without elements, which need no memory."""
    kind: StorageKind = "shared"
    """What an attaching engine uses: the arena's bytes (shared), or a private copy of them, which an update makes again
    from the shared ones (derived), or which the engine writes to and no update touches (runtime)."""


class TensorView(NamedTuple):
    storage: int
    """Index into `storages`."""
    offset: int
    """Elements from the start of the storage."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    """Elements."""
    dtype: str
    """As torch prints it, without the prefix: `bfloat16`."""
    parameter: bool
    """A torch.nn.Parameter (or subclass) rather than a plain tensor."""
    cls: str
    """Qualified class of the tensor object."""
    attributes: Mapping[str, Scalar] = {}
    """Metadata on the object itself, such as `format_ue8m0`."""


class Binding(NamedTuple):
    module: str
    """Path from the root, whose own is empty."""
    attribute: str
    kind: BindingKind
    tensor: int
    """Index into `tensors`."""
