"""What a layout begins with: a frame with a checksum, and the head. Checked as untrusted input.

The head is what is irregular: identity, segments, and what the load did beside tensors. Most modules that a load marks
are marked alike, so that marks are listed once, with the numbers of their modules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from flashboot_agent import _native

Scalar = bool | int | float | str | None
Marks = TypeVar("Marks", dict[str, Scalar], list[str])
Groups = list[tuple[Marks, list[int]]]
"""What was marked, and the numbers of the modules that have it so."""

MOST_CHARACTERS: Final = 1 << 16
"""Of one text."""


class LayoutError(ValueError):
    """The layout can't be; the message names the place."""


def split(document: bytes) -> tuple[Any, bytes]:
    """Head, which is some JSON, and tables. Raises LayoutError."""
    try:
        text, tables = _native.layout_parts(document)
    except _native.Malformed as error:
        raise LayoutError(str(error)) from error
    try:
        head = json.loads(text)
        again = canonical(head)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"the layout's head is no JSON: {error}"[:500]) from error
    if again != text:
        raise LayoutError("the layout's head is not in its one canonical form")
    return head, tables


def canonical(value: Any) -> bytes:
    """The one JSON text of a value. Raises LayoutError for what JSON can't carry exactly."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode()
    except (TypeError, ValueError) as error:
        raise LayoutError(f"a value that JSON can't carry: {error}"[:500]) from error


class Head:
    """What is told without looking into the tables. (Made by each attach, and a NamedTuple takes long to define.)"""

    def __init__(
        self,
        *,
        identity: dict[str, str],
        arena_bytes: int,
        segments: list[tuple[int, int]],
        attributes: list[dict[str, Scalar]],
        scalars: Groups[dict[str, Scalar]],
        deleted: Groups[list[str]],
        structure: str | None,
    ) -> None:
        """segments: offset and bytes of each. attributes: the sets that tensors' forms refer to by number."""
        self.identity = identity
        self.arena_bytes = arena_bytes
        self.segments = segments
        self.attributes = attributes
        self.scalars = scalars
        self.deleted = deleted
        self.structure = structure


def by_module(groups: Groups[Marks], modules: Callable[[], list[str]]) -> dict[str, Marks]:
    """Path → what the module was marked with. `modules` gives all paths; not asked when there is nothing."""
    paths = modules() if groups else []
    return {paths[module]: type(marks)(marks) for marks, numbers in groups for module in numbers}


def checked(head: Any) -> Head:
    """Raises LayoutError, naming the field."""
    fields = {"identity", "arenaBytes", "segments", "attributes", "scalars", "deleted", "structure"}
    _require(isinstance(head, dict) and head.keys() == fields, f"the head has other fields than {sorted(fields)}")
    identity, nbytes = head["identity"], head["arenaBytes"]
    _require(isinstance(identity, dict) and all(map(_is_text, (*identity, *identity.values()))), "identity: no texts")
    _require(_is_int(nbytes) and 0 < nbytes <= _native.LAYOUT_MOST_BYTES, f"arenaBytes: {nbytes!r}"[:100])
    attributes = _list(head["attributes"], "attributes")
    _require(all(map(_are_scalars, attributes)), "attributes: something else than scalars by name")
    structure = head["structure"]
    _require(structure is None or _is_text(structure), "structure: no text")
    return Head(
        identity=identity,
        arena_bytes=nbytes,
        segments=_segments(head["segments"], nbytes),
        attributes=attributes,
        scalars=_groups(head["scalars"], "scalars", _are_scalars),
        deleted=_groups(head["deleted"], "deleted", _are_names),
        structure=structure,
    )


def _segments(value: Any, arena_bytes: int) -> list[tuple[int, int]]:
    segments, end = [], 0
    for number, each in enumerate(_list(value, "segments")):
        sound = isinstance(each, list) and len(each) == 2 and all(map(_is_int, each)) and each[1] > 0
        _require(sound, f"segments: {number} is no pair of offset and bytes")
        _require(each[0] == end, f"segments leave a gap or overlap at byte {end}")
        segments.append((each[0], each[1]))
        end += each[1]
    _require(end == arena_bytes, f"segments end at byte {end}, the arena at {arena_bytes}")
    return segments


def _groups(value: Any, what: str, sound: Callable[[Any], bool]) -> list[tuple[Any, list[int]]]:
    groups = []
    for number, each in enumerate(_list(value, what)):
        _require(isinstance(each, list) and len(each) == 2, f"{what}: {number} is no pair of marks and modules")
        marks, modules = each
        _require(sound(marks) and bool(marks), f"{what}: the marks of {number} are none")
        _require(all(_is_int(m) and m >= 0 for m in _list(modules, what)), f"{what}: {number} has wrong modules")
        groups.append((marks, modules))
    return groups


def _require(sound: bool, why: str) -> None:
    if not sound:
        raise LayoutError(f"the layout's {why}")


def _list(value: Any, what: str) -> list[Any]:
    _require(isinstance(value, list), f"{what} are no list")
    return list(value)


def _is_int(value: Any) -> bool:
    return type(value) is int


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MOST_CHARACTERS


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and value == sorted(set(value))


def _are_scalars(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and _is_scalar(each) for name, each in value.items())


def _is_scalar(value: Any) -> bool:
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 63
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) is bool or _is_text(value)
