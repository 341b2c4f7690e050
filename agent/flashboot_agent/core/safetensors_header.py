"""The header of a safetensors file, checked as strictly as the library that will load it, with messages for people.

The format: 8 bytes little-endian with the length of the header, the header (a JSON object: name → dtype, shape,
data_offsets; and `__metadata__`), then the tensors' bytes without gaps up to the end of the file.
Source: github.com/huggingface/safetensors, "Format", and its `Metadata::validate`.

Pure: whatever bytes it gets, the answer is a Header, CheckpointTruncated or CheckpointMalformed; these name the file
and the tensor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NoReturn

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


@dataclass(frozen=True)
class Header:
    tensors: frozenset[str]
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
    entries = json_object(text, f"{name}: the header")
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise CheckpointMalformed(f"{name}: __metadata__ is not an object of strings")
    spans = sorted((*_span(tensor, entry, name), tensor) for tensor, entry in entries.items())
    there = file_bytes - LENGTH_BYTES - len(text)
    end = 0
    for begin, stop, tensor in spans:
        if begin != end:
            what = "leaves a gap after" if begin > end else "overlaps the tensor that ends at"
            raise CheckpointMalformed(f"{name}: tensor {tensor!a} begins at data byte {begin} and {what} byte {end}")
        if stop > there:
            raise CheckpointTruncated(
                f"{name} has {there} data bytes; {stop - there} of tensor {tensor!a} at [{begin}, {stop}) are missing"
            )
        end = stop
    if end != there:
        raise CheckpointMalformed(f"{name}: its tensors end at data byte {end}, the file has {there} data bytes")
    return Header(frozenset(entries), end)


def _span(tensor: str, entry: object, name: str) -> tuple[int, int]:
    """The checked data_offsets of one entry."""

    def refuse(why: str) -> NoReturn:
        raise CheckpointMalformed(f"{name}: tensor {tensor!a}: {why}")

    if any("\ud800" <= char <= "\udfff" for char in tensor):  # half a surrogate pair, written as an escape
        refuse("its name is no Unicode text")
    if not isinstance(entry, dict):
        refuse("its entry is no object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        refuse(f"unknown dtype {_short(dtype)}")
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        refuse(f"shape {_short(shape)} is no list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        refuse(f"data_offsets {_short(offsets)} is no pair of offsets")
    begin, stop = offsets
    if begin > stop:
        refuse(f"data_offsets {_short(offsets)} run backwards")
    bits = BITS[dtype]
    for size in shape:
        bits *= size
        if bits > _LARGEST:
            refuse(f"shape {_short(shape)} is beyond 64 bits")
    if bits % 8:
        refuse(f"{dtype} of shape {_short(shape)} has {bits} bits, no whole bytes")
    if bits // 8 != stop - begin:
        refuse(f"{dtype} of shape {_short(shape)} has {bits // 8} bytes, data_offsets {_short(offsets)} {stop - begin}")
    return begin, stop


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def _short(value: object) -> str:
    """At most 80 ASCII characters of a value that may hold anything."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def json_object(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object without repeated keys and without numbers that JSON does not know.

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

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise CheckpointMalformed(f"{what} is no UTF-8 at byte {error.start}") from None
    except ValueError as error:  # also a number with more digits than Python converts
        raise CheckpointMalformed(f"{what} is no valid JSON: {error}"[:500]) from None
    except RecursionError:
        raise CheckpointMalformed(f"{what} is nested too deep") from None
    if not isinstance(value, dict):
        raise CheckpointMalformed(f"{what} is {_short(value)}, not a JSON object")
    return value
