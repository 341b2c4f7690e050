"""The layout document: where every tensor of a rank lies in its arena, and what makes a rebind exact.

Written by the seed's plug-in, carried as opaque bytes by agents and over the wire, read again by every attaching
plug-in. Storage-centred: storages hold bytes, tensors are views on storages, bindings put tensors on modules. Two
bindings of one tensor are the same Python object (a tie).

A Layout is its document: made from content, it is written and read back, so that whatever exists has passed the same
checks as what a stranger sent. Nothing here imports pydantic or torch, and writing and entries are imported by whoever
needs them: an engine attaches in less time than that takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final

from flashboot_agent import _native
from flashboot_agent.wire.layout_head import Head, LayoutError, Scalar, by_module, checked, split

if TYPE_CHECKING:
    from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView

__all__ = ["ALIGNMENT", "MAX_LAYOUT", "Head", "Layout", "LayoutError", "Scalar", "read_head"]

ALIGNMENT: Final = _native.LAYOUT_ALIGNMENT
"""Bytes that every storage's offset is a multiple of: enough for any vector load and for device copies."""

MAX_LAYOUT: Final = _native.LAYOUT_MOST_DOCUMENT
"""Bytes of a layout document; the largest that tables allow fits several times."""


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
        from flashboot_agent.wire.layout_bytes import Tables, grouped, join

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
        self._read(join(head, tables.to_bytes()))

    @classmethod
    def from_bytes(cls, document: bytes) -> Layout:
        """Raises LayoutError, naming the place."""
        layout = cls.__new__(cls)
        layout._read(document)
        return layout

    def to_bytes(self) -> bytes:
        return self._document

    def _read(self, document: bytes) -> None:
        head, tables = split(document)
        self._document = document
        self._head = checked(head)
        ends = [offset + size for offset, size in self._head.segments]
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

    @cached_property
    def segments(self) -> list[Segment]:
        from flashboot_agent.wire.layout_entries import Segment

        return [Segment(*each) for each in self._head.segments]

    @property
    def structure(self) -> str | None:
        """Digest of the seed's model before its load (engine/structure.py); None: it was not filled from a model."""
        return self._head.structure

    @cached_property
    def storages(self) -> list[Storage]:
        from flashboot_agent.wire.layout_entries import STORAGE_KINDS, Storage

        return [Storage(offset, size, STORAGE_KINDS[kind]) for offset, size, kind in self.table.storages()]

    @cached_property
    def tensors(self) -> list[TensorView]:
        from flashboot_agent.wire.layout_entries import TensorView

        forms = [(*form[:5], self._head.attributes[form[5]]) for form in self.table.forms()]
        return [TensorView(storage, offset, *forms[form]) for storage, offset, form in self.table.tensors()]

    @cached_property
    def bindings(self) -> list[Binding]:
        from flashboot_agent.wire.layout_entries import BINDING_KINDS, Binding

        return [Binding(module, name, BINDING_KINDS[kind], at) for module, name, kind, at in self.table.bindings()]

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
    return checked(split(document)[0])
