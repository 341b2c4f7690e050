"""The layout document: where every tensor of a rank lies in its arena, and what makes a rebind exact.

Written by the seed's plug-in, carried as opaque bytes by agents and over the wire, read again by every attaching
plug-in. Storage-centred: storages hold bytes, tensors are views on storages, bindings put tensors on modules. Two
bindings of one tensor are the same Python object (a tie).

A Layout is its document: made from content, it is written and read back, so that whatever exists has passed the same
checks as what a stranger sent. Nothing here imports pydantic or torch: an engine attaches in less time than that takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from flashboot_agent import _native
from flashboot_agent.wire import layout_bytes
from flashboot_agent.wire.layout_bytes import (
    BINDING_KINDS,
    STORAGE_KINDS,
    BindingKind,
    LayoutError,
    StorageKind,
    Tables,
)
from flashboot_agent.wire.layout_head import Head, Scalar, Segment, by_module, checked, grouped

__all__ = [
    "ALIGNMENT",
    "MAX_LAYOUT",
    "Binding",
    "BindingKind",
    "Head",
    "Layout",
    "LayoutError",
    "Scalar",
    "Segment",
    "Storage",
    "StorageKind",
    "TensorView",
    "read_head",
]

Object = TypeVar("Object")

ALIGNMENT: Final = _native.LAYOUT_ALIGNMENT
"""Bytes that every storage's offset is a multiple of: enough for any vector load and for device copies."""

MAX_LAYOUT: Final = 64 << 20
"""Bytes of a layout document; the largest that tables allow fits several times."""


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


class Layout:
    """Immutable; equal when the documents are."""

    def __init__(
        self,
        *,
        identity: Mapping[str, str],
        arena_bytes: int,
        segments: Iterable[Segment],
        storages: Iterable[Storage],
        tensors: Iterable[TensorView],
        bindings: Iterable[Binding],
        scalars: Mapping[str, Mapping[str, Scalar]] | None = None,
        deleted: Mapping[str, Iterable[str]] | None = None,
        structure: str | None = None,
    ) -> None:
        """Raises LayoutError, naming the place."""
        tables = Tables(storages, tensors, bindings)
        head = {
            "identity": dict(identity),
            "arenaBytes": arena_bytes,
            "segments": [list(segment) for segment in segments],
            "scalars": grouped({module: dict(values) for module, values in (scalars or {}).items()}, tables.module),
            "deleted": grouped(
                {module: sorted(set(names)) for module, names in (deleted or {}).items()}, tables.module
            ),
            "structure": structure,
            "attributes": tables.attributes,
        }
        self._read(layout_bytes.join(head, tables.to_bytes()))

    @classmethod
    def from_bytes(cls, document: bytes) -> Layout:
        """Raises LayoutError, naming the place."""
        layout = cls.__new__(cls)
        layout._read(document)
        return layout

    def to_bytes(self) -> bytes:
        return self._document

    def _read(self, document: bytes) -> None:
        head, tables = layout_bytes.split(document)
        self._document = document
        self._head = checked(head)
        ends = [segment.offset + segment.bytes for segment in self._head.segments]
        try:
            self.table = _native.LayoutTable(tables, ends, len(self._head.attributes))
        except _native.Malformed as error:
            raise LayoutError(f"the layout's tables are wrong: {error}") from error
        for what, groups in (("scalars", self._head.scalars), ("deleted", self._head.deleted)):
            listed = [module for _, modules in groups for module in modules]
            if len(set(listed)) < len(listed) or max(listed, default=0) >= self.table.module_count:
                raise LayoutError(f"{what}: a module is there twice, or is none of {self.table.module_count}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._document == other._document

    def __hash__(self) -> int:
        return hash(self._document)

    @property
    def identity(self) -> dict[str, str]:
        return self._head.identity

    @property
    def arena_bytes(self) -> int:
        return self._head.arena_bytes

    @property
    def segments(self) -> list[Segment]:
        return self._head.segments

    @property
    def structure(self) -> str | None:
        """Digest of the seed's model before its load (engine/structure.py); None: it was not filled from a model."""
        return self._head.structure

    @cached_property
    def storages(self) -> list[Storage]:
        return [Storage(offset, size, STORAGE_KINDS[kind]) for offset, size, kind in self.table.storages()]

    @cached_property
    def tensors(self) -> list[TensorView]:
        forms = [(*form[:5], self._head.attributes[form[5]]) for form in self.table.forms()]
        return [TensorView(storage, offset, *forms[form]) for storage, offset, form in self.table.tensors()]

    @cached_property
    def bindings(self) -> list[Binding]:
        return [Binding(module, name, BINDING_KINDS[kind], at) for module, name, kind, at in self.table.bindings()]

    def named(self, objects: list[Object]) -> dict[str, Object]:
        """One object per tensor, each under every name (`module.attribute`) of its tensor.

        Raises LayoutError when two names are the same."""
        try:
            return self.table.by_name(objects)
        except _native.Malformed as error:
            raise LayoutError(str(error)) from error

    @cached_property
    def scalars(self) -> dict[str, dict[str, Scalar]]:
        """Module path → attribute → value, for scalars that loading and post-processing stamped on modules.

        An attribute with dots leads to an object below the module: `quant_method.block_quant`. An object other than a
        scalar or a tensor stands as `<its.qualified.class>`: it can't travel, so it must be there by construction, or
        the attaching engine refuses."""
        return by_module(self._head.scalars, self.table.modules)

    @cached_property
    def deleted(self) -> dict[str, list[str]]:
        """Module path → names of attributes that the model has by construction and that loading removes, sorted.

        Tensors (an unpacked weight) as well as scalars and objects; the attaching engine removes them before it binds.
        """
        return by_module(self._head.deleted, self.table.modules)


def read_head(document: bytes) -> Head:
    """What an agent needs to know of a layout that it carries; the tables stay unread. Raises LayoutError."""
    return checked(layout_bytes.split(document)[0])
