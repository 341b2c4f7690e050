"""Small safetensors files, made byte by byte, for the suites of core/ and load/."""

from __future__ import annotations

import json
import struct
from pathlib import Path
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


def checkpoint(folder: Path, tensors: dict[str, bytes], files: int) -> Path:
    """bfloat16 tensors, dealt out to so many files, without an index."""
    folder.mkdir(parents=True)
    names = list(tensors)
    for number in range(files):
        entries, data = {}, b""
        for name in names[number::files]:
            entries[name] = entry("BF16", [len(tensors[name]) // 2], len(data))
            data += tensors[name]
        (folder / f"part{number}.safetensors").write_bytes(tensor_file(entries, data))
    return folder


def read(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for name, each in json.loads(data[8 : 8 + size]).items():
            begin, end = each["data_offsets"]
            found[name] = data[8 + size + begin : 8 + size + end]
    return found
