"""Small safetensors files, made byte by byte, for the suites of core/ and load/."""

from __future__ import annotations

import json
import struct
from typing import Any

from flashboot_agent.core.safetensors_header import BITS


def entry(dtype: str, shape: list[int], begin: int) -> dict[str, Any]:
    """The header's entry of a tensor whose bytes begin at `begin`."""
    bits = BITS[dtype]
    for size in shape:
        bits *= size
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + bits // 8]}


def tensor_file(entries: dict[str, Any], data: int | bytes, *, metadata: object = None) -> bytes:
    """A file with this header and these bytes (or so many zeroes) behind it."""
    header = dict(entries)
    if metadata is not None:
        header["__metadata__"] = metadata
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)
