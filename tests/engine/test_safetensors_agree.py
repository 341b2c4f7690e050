"""Our check of safetensors headers against the library that loads them: what we accept it accepts, with the same
tensors; what it refuses we refuse. Files are made and damaged at random, the same ones every time.
"""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest
from safetensors import SafetensorError, deserialize

from flashboot_agent.core.errors import CheckpointMalformed, CheckpointTruncated
from flashboot_agent.core.safetensors_header import BITS, LENGTH_BYTES, Header, check_header, header_length
from tests.checkpoints import entry, tensor_file

FILES = 4000


def ours(content: bytes) -> Header | str:
    try:
        length = header_length(content[:LENGTH_BYTES], len(content), "file")
        return check_header(content[LENGTH_BYTES : LENGTH_BYTES + length], len(content), "file")
    except (CheckpointMalformed, CheckpointTruncated) as error:
        return str(error)


def theirs(content: bytes) -> dict[str, dict[str, Any]] | str:
    try:
        return dict(deserialize(content))
    except SafetensorError as error:
        return str(error)


def compare(content: bytes) -> bool:
    """True when both accept it."""
    mine, other = ours(content), theirs(content)
    if isinstance(mine, str):
        if not isinstance(other, str):
            stricter = ("unknown key", "comes twice", "no Unicode text", "is no JSON number")
            assert any(word in mine for word in stricter), f"only we refuse {content!r}: {mine}"
        return False
    assert not isinstance(other, str), f"only we accept {content!r}: {other}"
    assert {tensor.name for tensor in mine.tensors} == other.keys()
    for tensor in mine.tensors:
        assert other[tensor.name]["dtype"] == tensor.dtype
        assert tuple(other[tensor.name]["shape"]) == tensor.shape
        start, end = mine.data_start + tensor.begin, mine.data_start + tensor.end
        assert bytes(other[tensor.name]["data"]) == content[start:end]
    return True


def some_file(chance: random.Random) -> bytes:
    """A sound file of a few tensors, of all dtypes, scalars and empty ones too."""
    entries: dict[str, Any] = {}
    end = 0
    for number in range(chance.randrange(5)):
        shape = [chance.randrange(4) for _ in range(chance.randrange(3))]
        dtype = chance.choice(sorted(BITS))
        if BITS[dtype] % 8:
            shape.append(8)  # whole bytes
        entries[f"t{number}"] = entry(dtype, shape, end)
        end = entries[f"t{number}"]["data_offsets"][1]
    items = list(entries.items())
    chance.shuffle(items)
    return tensor_file(dict(items), chance.randbytes(end), metadata={"format": "pt"} if chance.random() < 0.5 else None)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Anything may have happened to it; often only to the header, and often so that it stays JSON."""
    (length,) = struct.unpack("<Q", content[:8])
    header, data = bytearray(content[8 : 8 + length]), content[8 + length :]
    for _ in range(chance.randrange(1, 3)):
        at = chance.randrange(len(header))
        match chance.randrange(5):
            case 0:
                header[at] = chance.randrange(256)
            case 1:
                del header[at : at + chance.randrange(1, 4)]
            case 2:
                header[at:at] = chance.choice([b" ", b"0", b"1", b"-", b'"', b",", b"[", b"}", b".5", b"e9"])
            case 3:
                data = data[: chance.randrange(len(data) + 1)] if chance.random() < 0.5 else data + b"x"
            case _:
                digits = [i for i, byte in enumerate(header) if chr(byte).isdigit()]
                if digits:
                    header[chance.choice(digits)] = ord(chance.choice("0123456789"))
        if not header:
            break
    return struct.pack("<Q", len(header)) + bytes(header) + data


def test_sound_files_are_the_same_to_both() -> None:
    chance = random.Random(1)
    assert all(compare(some_file(chance)) for _ in range(FILES // 4))


def test_damaged_files_are_the_same_to_both() -> None:
    chance = random.Random(2)
    accepted = sum(compare(damaged(some_file(chance), chance)) for _ in range(FILES))
    assert FILES // 100 < accepted < FILES // 2, "else this test looks at one side only"


@pytest.mark.parametrize(
    "header",
    [
        "{}",
        " {}",
        '{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"U8","shape":[18446744073709551615,18446744073709551615,0],"data_offsets":[0,0]}}',
        '{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"more":1}}',
        '{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}',
        '{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4.0]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[-0,4]}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"__metadata__":{"a":1}}',
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"__metadata__":null}',
        '{"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F4","shape":[7],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]}}',
    ],
)
def test_the_corners_of_the_format_are_the_same_to_both(header: str) -> None:
    assert json.loads(header) is not None
    compare(struct.pack("<Q", len(header)) + header.encode() + bytes(4))
    compare(struct.pack("<Q", len(header)) + header.encode())
