"""The bytes of a layout (docs/reference/layout.md): a head of JSON for what is irregular, columns for the rest.

The same content always gives the same bytes: tables are filled in the order of first use, the JSON is canonical, and
nothing is compressed. Only writing is here: layout_head.py reads the head, csrc/layout_table.cpp the tables.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from flashboot_agent._native import LAYOUT_ALIGNMENT, LAYOUT_DTYPES, LAYOUT_VERSION
from flashboot_agent.wire.layout_entries import BINDING_KINDS, STORAGE_KINDS, Binding, Storage, TensorView
from flashboot_agent.wire.layout_head import LayoutError, Marks, canonical

MAGIC: Final = b"FBLAYOUT"
PREFIX: Final = struct.Struct("<8sIIII")
"""Magic, version, CRC-32 of all that follows it, bytes of the head, bytes of the tables."""
CHECKED_FROM: Final = 16
"""Where that begins."""

MOST_TEXT: Final = 1024
"""Bytes of a name, and of a module's path."""

Key = TypeVar("Key")

_DTYPES: Final = {name: number for number, name in enumerate(LAYOUT_DTYPES)}
_WIDTHS: Final = ((1, "B"), (2, "H"), (4, "I"), (8, "Q"))


def join(head: Mapping[str, Any], tables: bytes) -> bytes:
    text = canonical(head)
    rest = struct.pack("<II", len(text), len(tables)) + text + tables
    return PREFIX.pack(MAGIC, LAYOUT_VERSION, zlib.crc32(rest), 0, 0)[:CHECKED_FROM] + rest


def grouped(marks: Mapping[str, Marks], number: Callable[[str], int]) -> list[list[Any]]:
    """By content, in the order of the modules' paths: the order in which they came says nothing."""
    groups: dict[bytes, list[Any]] = {}
    for module in sorted(marks):
        if marks[module]:
            groups.setdefault(canonical(marks[module]), [marks[module], []])[1].append(number(module))
    return list(groups.values())


class Numbers(Generic[Key]):
    """Distinct values, numbered in the order in which they came."""

    def __init__(self) -> None:
        self.of: dict[Key, int] = {}

    def __call__(self, value: Key) -> int:
        return self.of.setdefault(value, len(self.of))


class Modules:
    """Paths as a tree: a row of parent and name for each module but the root, which is number 0."""

    def __init__(self, names: Numbers[str]) -> None:
        self._names = names
        self._numbers = {"": 0}
        self.rows: list[tuple[int, int]] = []

    def __call__(self, path: str) -> int:
        number = self._numbers.get(path)
        if number is None:
            if len(path) > MOST_TEXT or not all(path.split(".")):
                raise LayoutError(f"{path[:80]!r} is no path of a module")
            parent, _, name = path.rpartition(".")
            self.rows.append((self(parent), self._names(name)))
            number = self._numbers[path] = len(self.rows)
        return number


class Tables:
    """The columns of a layout. Raises LayoutError for content that has no bytes; the reader checks what it means."""

    def __init__(self, storages: Iterable[Storage], tensors: Iterable[TensorView], bindings: Iterable[Binding]) -> None:
        self._names: Numbers[str] = Numbers()
        self._rows: Numbers[tuple[int, int, int]] = Numbers()
        self._forms: Numbers[tuple[Any, ...]] = Numbers()
        self._attributes: Numbers[bytes] = Numbers()
        self.module = Modules(self._names)
        self._attributes(canonical({}))
        self._storages = list(self._placed(storages))
        self._tensors = [(view.storage, view.offset, self._form(view)) for view in tensors]
        self._bindings = [
            (self.module(each.module), self._names(each.attribute), _kind(BINDING_KINDS, each.kind), each.tensor)
            for each in bindings
        ]

    @property
    def attributes(self) -> list[Any]:
        """The sets of attributes that forms refer to by number; the first is the empty one."""
        return [json.loads(text) for text in self._attributes.of]

    def to_bytes(self) -> bytes:
        try:
            names = [name.encode() for name in self._names.of]
        except UnicodeEncodeError as error:
            raise LayoutError(f"a name that is no text: {error}") from error
        forms = list(self._forms.of)
        dims = [list(pair) for form in forms for pair in zip(form[5], form[6], strict=True)]
        tables: list[tuple[Sequence[Sequence[int]], int]] = [
            ([form[:5] for form in forms], 5),
            (dims, 2),
            (self.module.rows, 2),
            (list(self._rows.of), 3),
            ([(row,) for row in self._storages], 1),
            (self._tensors, 3),
            (self._bindings, 4),
        ]
        counts = struct.pack("<8I", len(names), *(len(rows) for rows, _ in tables))
        columns = [_column([row[at] for row in rows]) for rows, width in tables for at in range(width)]
        return b"".join([counts, _column([len(name) for name in names]), *names, *columns])

    def _placed(self, storages: Iterable[Storage]) -> Iterable[int]:
        end = 0
        for number, storage in enumerate(storages):
            begin = -(-end // LAYOUT_ALIGNMENT) * LAYOUT_ALIGNMENT
            if storage.offset % LAYOUT_ALIGNMENT:
                raise LayoutError(f"storage {number} begins at {storage.offset}, not a multiple of {LAYOUT_ALIGNMENT}")
            if storage.offset < begin:
                raise LayoutError(f"storage {number} begins at {storage.offset}, inside the one that ends at {end}")
            kind = _kind(STORAGE_KINDS, storage.kind)
            yield self._rows((storage.bytes, kind, (storage.offset - begin) // LAYOUT_ALIGNMENT))
            end = storage.offset + storage.bytes

    def _form(self, view: TensorView) -> int:
        if view.dtype not in _DTYPES:
            raise LayoutError(f"dtype {view.dtype!r} is not among those that layouts carry: {', '.join(_DTYPES)}")
        if len(view.shape) != len(view.stride):
            raise LayoutError(f"a tensor with {len(view.shape)} sizes and {len(view.stride)} strides")
        attributes = self._attributes(canonical(view.attributes))
        head = (_DTYPES[view.dtype], len(view.shape), self._names(view.cls), int(view.parameter), attributes)
        return self._forms((*head, tuple(view.shape), tuple(view.stride)))


def _kind(kinds: tuple[str, ...], kind: str) -> int:
    if kind not in kinds:
        raise LayoutError(f"{kind!r} is no kind; there are {', '.join(kinds)}")
    return kinds.index(kind)


def _column(values: Sequence[int]) -> bytes:
    """Its width in bytes, then the entries; width 0 and one entry of 8 bytes where all entries are the same."""
    most = max(values, default=0)
    if min(values, default=0) < 0 or most >= 1 << 64:
        raise LayoutError(f"an entry of {min(values)} or {most}, not between 0 and 2^64")
    if values and all(value == values[0] for value in values):
        return struct.pack("<BQ", 0, values[0])
    width, code = next(pair for pair in _WIDTHS if most < 1 << 8 * pair[0])
    entries = array(code, values)
    if sys.byteorder == "big":
        entries.byteswap()
    return bytes([width]) + entries.tobytes()
