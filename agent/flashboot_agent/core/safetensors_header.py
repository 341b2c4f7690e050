"""The header of a safetensors file, checked as strictly as the library that will load it, with messages for people.

The format: 8 bytes little-endian with the length of the header, the header (a JSON object: name → dtype, shape,
data_offsets; and `__metadata__`), then the tensors' bytes without gaps up to the end of the file.
Source: github.com/huggingface/safetensors, "Format", and its `Metadata::validate`.

Pure: whatever bytes it gets, the answer is a Header, CheckpointTruncated or CheckpointMalformed; these name the file,
and where there is one the tensor and the offset. Stricter than the library in one thing: a key that an entry does not
have by the format is refused, not skipped.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

from flashboot_agent.core.errors import CheckpointMalformed, CheckpointTruncated

LENGTH_BYTES: Final = 8
MAX_HEADER: Final = 100_000_000
"""Bytes; the library refuses longer ones."""
_LARGEST: Final = (1 << 64) - 1

BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""dtype → bits of one element (safetensors 0.8)."""

_KEYS: Final = frozenset(("dtype", "shape", "data_offsets"))


class Tensor(NamedTuple):
    """One tensor of a file; `begin` and `end` count bytes from the end of the header."""

    begin: int
    end: int
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """A sound header. Holds always: the tensors follow each other without gap or overlap, up to the end of the file."""

    tensors: tuple[Tensor, ...]
    """In the order of their bytes."""
    data_start: int
    """Offset in the file of the first tensor's first byte."""
    data_bytes: int


def header_length(start: bytes, file_bytes: int, name: str) -> int:
    """Length of the header in bytes, from the file's first 8 bytes (fewer when it is shorter).

    Raises CheckpointTruncated, CheckpointMalformed."""
    if len(start) < LENGTH_BYTES:
        raise CheckpointTruncated(f"{name} has {file_bytes} bytes; a safetensors file begins with an 8 byte length")
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER:
        raise CheckpointMalformed(
            f"{name}: its header claims {length} bytes, allowed are {MAX_HEADER}; not safetensors?"
        )
    if LENGTH_BYTES + length > file_bytes:
        raise CheckpointTruncated(f"{name} ends at byte {file_bytes}, its header alone at {LENGTH_BYTES + length}")
    return length


def check_header(text: bytes, file_bytes: int, name: str) -> Header:
    """Check a whole header of a file of `file_bytes`.

    Raises CheckpointTruncated when tensors lie beyond the end of the file, CheckpointMalformed."""
    with _no_collections():
        return _checked(text, file_bytes, name)


def _checked(text: bytes, file_bytes: int, name: str) -> Header:
    entries = json_object(text, f"{name}: the header", sizes=True)
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise CheckpointMalformed(f"{name}: __metadata__ is not an object of strings")
    tensors = sorted(_tensor(tensor, entry, name) for tensor, entry in entries.items())
    start = LENGTH_BYTES + len(text)
    there = file_bytes - start
    last = 0
    for begin, end, tensor, _, _ in tensors:
        if begin != last:
            what = "leaves a gap after" if begin > last else "overlaps the tensor that ends at"
            raise CheckpointMalformed(f"{name}: tensor {tensor!a} begins at data byte {begin} and {what} byte {last}")
        if end > there:
            raise CheckpointTruncated(
                f"{name} has {there} data bytes; {end - there} of tensor {tensor!a} at [{begin}, {end}) are missing"
            )
        last = end
    if last != there:
        raise CheckpointMalformed(f"{name}: its tensors end at data byte {last}, the file has {there} data bytes")
    return Header(tuple(tensors), start, last)


def _tensor(tensor: str, entry: object, name: str) -> Tensor:
    """One checked entry."""

    def refuse(why: str) -> NoReturn:
        raise CheckpointMalformed(f"{name}: tensor {_short(tensor)}: {why}")

    if not tensor.isascii() and any("\ud800" <= char <= "\udfff" for char in tensor):
        refuse("its name is no Unicode text")  # half a surrogate pair, written as an escape
    if not isinstance(entry, dict):
        refuse("its entry is no object")
    if entry.keys() != _KEYS:
        if extra := sorted(entry.keys() - _KEYS):
            refuse(f"unknown key {_short(extra[0])}")
        refuse(f"no {sorted(_KEYS - entry.keys())[0]}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        refuse(f"unknown dtype {_short(dtype)}")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        refuse(f"shape {_short(shape)} is no list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        refuse(f"data_offsets {_short(offsets)} is no pair of offsets")
    begin, end = offsets
    if begin > end:
        refuse(f"data_offsets {_short(offsets)} run backwards")
    bits = BITS[dtype]
    for size in shape:
        bits *= size
        if bits > _LARGEST:
            refuse(f"shape {_short(shape)} is beyond 64 bits")
    if bits % 8:
        refuse(f"{dtype} of shape {_short(shape)} has {bits} bits, no whole bytes")
    if bits // 8 != end - begin:
        refuse(f"{dtype} of shape {_short(shape)} has {bits // 8} bytes, data_offsets {_short(offsets)} {end - begin}")
    return Tensor(begin, end, tensor, dtype, tuple(shape))


@contextmanager
def _no_collections() -> Iterator[None]:
    """A header of 100,000 tensors makes so many objects at once that looking for cycles among them, again and again,
    would take as long as checking them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST  # a bool is no size


def _short(value: object) -> str:
    """At most 80 ASCII characters of a value that may hold anything."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def json_object(text: bytes, what: str, *, sizes: bool = False) -> dict[str, Any]:
    """A JSON object without repeated keys and without numbers that JSON does not know. `sizes`: -0 is none.

    Raises CheckpointMalformed."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            double = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"key {_short(double)} comes twice")
        return found

    def constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON number")

    def integer(digits: str) -> int:
        if digits == "-0":
            raise ValueError("-0 is no integer")  # to the library it is a float
        return int(digits)

    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=unique,
            parse_constant=constant,
            parse_int=integer if sizes and b"-0" in text else None,
        )
    except UnicodeDecodeError as error:
        raise CheckpointMalformed(f"{what} is no UTF-8 at byte {error.start}") from None
    except ValueError as error:  # also a number with more digits than Python converts
        raise CheckpointMalformed(f"{what} is no valid JSON: {error}"[:500]) from None
    except RecursionError:
        raise CheckpointMalformed(f"{what} is nested too deep") from None
    if not isinstance(value, dict):
        raise CheckpointMalformed(f"{what} is {_short(value)}, not a JSON object")
    return value
