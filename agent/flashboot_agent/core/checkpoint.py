"""Check a Hugging Face checkpoint before an engine touches it, so that a bad file gets a name, not a stack trace.

Reads config.json, the index and the headers of the shards; never a tensor. Everything it raises is Retryable: whoever
puts the file right need not restart anything. Links are followed, as the Hugging Face cache needs; names in an index
may not leave the folder.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from flashboot_agent import _native
from flashboot_agent.core.errors import (
    CheckpointIndexMissingShard,
    CheckpointMalformed,
    CheckpointMissing,
    CheckpointTruncated,
    FlashBootError,
)
from flashboot_agent.core.safetensors_header import LENGTH_BYTES, MAX_HEADER, Header, check_header, header_length

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
_NUMBERED: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


@dataclass(frozen=True)
class Shard:
    """A weight file, and the tensors that the index places in it; without an index there are none."""

    path: Path
    index: _native.WeightMap | None = None
    number: int = 0
    """Of the file in the index."""

    def read_header(self, file: BinaryIO) -> Header:
        """The checked header of this file, open; its descriptor stands behind it then.

        Raises CheckpointMissing, CheckpointMalformed (also when a tensor is not where the index places it),
        CheckpointTruncated."""
        header = _read_header(file, self.path)
        absent = self.index.absent(self.number, header.columns) if self.index else None
        if absent is not None:
            raise CheckpointMalformed(f"{self.path} has no tensor {absent}, which {INDEX} places there")
        return header

    def open(self) -> BinaryIO:
        """Raises CheckpointMissing (CheckpointIndexMissingShard with an index), CheckpointMalformed."""
        return open_file(self.path, CheckpointIndexMissingShard if self.index else CheckpointMissing)


@dataclass(frozen=True)
class Weights:
    """What the weight files of a sound checkpoint hold."""

    files: tuple[str, ...]
    tensors: int
    data_bytes: int


def check_config(folder: Path) -> dict[str, Any]:
    """The model's configuration.

    Raises CheckpointMissing, CheckpointMalformed."""
    _require_folder(folder)
    config = _json_object(_read(folder / CONFIG, CheckpointMissing), str(folder / CONFIG))
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise CheckpointMalformed(f"{folder / CONFIG}: architectures must be a list with the model's class name")
    return config


def check_weights(folder: Path) -> Weights:
    """Check all weight files: those that the index names, or all *.safetensors when there is no index.

    Raises CheckpointMissing, CheckpointMalformed, CheckpointIndexMissingShard, CheckpointTruncated."""
    wanted = shards(folder)
    tensors = data_bytes = 0
    for shard in wanted:
        with shard.open() as opened:
            header = shard.read_header(opened)
        tensors += len(header)
        data_bytes += header.data_bytes
    return Weights(tuple(str(shard.path.relative_to(folder)) for shard in wanted), tensors, data_bytes)


def shards(folder: Path) -> list[Shard]:
    """The weight files: those that the index names, or all *.safetensors; in the order of their names.

    Raises CheckpointMissing, CheckpointMalformed, CheckpointIndexMissingShard."""
    _require_folder(folder)
    if _exists(folder / INDEX):
        return _indexed(folder)
    try:
        files = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".safetensors"))
    except OSError as error:
        raise CheckpointMissing(f"{folder} can't be listed: {error.strerror}") from error
    if not files:
        raise CheckpointMissing(f"{folder} has neither {INDEX} nor any *.safetensors file")
    _require_complete_sets(folder, files)
    return [Shard(folder / file) for file in files]


def _read_header(file: BinaryIO, path: Path) -> Header:
    size = os.fstat(file.fileno()).st_size
    try:
        length = header_length(file.read(LENGTH_BYTES), size, str(path))
        text = file.read(length)
    except OSError as error:
        raise CheckpointMissing(f"{path} can't be read: {error.strerror}") from error
    if len(text) < length:  # somebody cuts it while we look
        raise CheckpointTruncated(f"{path} ended while its header was read")
    return check_header(text, size, str(path))


def open_file(path: Path, absent: type[FlashBootError] = CheckpointMissing) -> BinaryIO:
    """A regular file, opened for reading; what else the name may lead to is never waited for.

    Raises `absent`, CheckpointMissing, CheckpointMalformed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would hold us for ever
    except FileNotFoundError:
        raise absent(f"{path} is not there") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise CheckpointMissing(f"{path} can't be opened: {getattr(error, 'strerror', error)}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise CheckpointMalformed(f"{path} is no regular file")
    return os.fdopen(fd, "rb")


def _require_complete_sets(folder: Path, files: list[str]) -> None:
    """Without an index, `model-00002-of-00004.safetensors` says itself how many belong together."""
    sets: dict[tuple[str, int], set[int]] = {}
    for part in filter(None, map(_NUMBERED.fullmatch, files)):
        sets.setdefault((part["stem"], int(part["count"])), set()).add(int(part["number"]))
    for (stem, count), numbers in sets.items():
        first = 0 if 0 in numbers else 1
        absent = sorted(set(range(first, first + count)) - numbers)
        if absent:
            name = f"{stem}-{absent[0]:05}-of-{count:05}.safetensors"
            raise CheckpointIndexMissingShard(f"{folder / name} is not there; {len(numbers)} of {count} files are")


def _indexed(folder: Path) -> list[Shard]:
    path = folder / INDEX
    try:
        index = _native.WeightMap(_read(path, CheckpointMissing))
    except _native.Malformed as error:
        raise CheckpointMalformed(f"{path}: {error}") from None
    for file in index.files:
        if not _exists(folder / file):
            raise CheckpointIndexMissingShard(f"{path} names {file}, which is not there")
    return [Shard(folder / file, index, number) for number, file in enumerate(index.files)]


def _read(path: Path, absent: type[FlashBootError]) -> bytes:
    """A whole small file, up to the limit of a header."""
    with open_file(path, absent) as file:
        try:
            text = file.read(MAX_HEADER + 1)
        except OSError as error:
            raise CheckpointMissing(f"{path} can't be read: {error.strerror}") from error
    if len(text) > MAX_HEADER:
        raise CheckpointMalformed(f"{path} is larger than {MAX_HEADER} bytes")
    return text


def _exists(path: Path) -> bool:
    """Whether the name is there. A dangling link is not."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CheckpointMissing(f"{path} can't be looked at: {error.strerror}") from error
    return True


def _require_folder(folder: Path) -> None:
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        raise CheckpointMissing(f"{folder} is not there; is the checkpoint's volume mounted?") from None
    except OSError as error:
        raise CheckpointMissing(f"{folder} can't be looked at: {error.strerror}") from error
    if not is_folder:
        raise CheckpointMissing(f"{folder} is no folder")


def _json_object(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object without repeated keys and without numbers that JSON does not know.

    Raises CheckpointMalformed."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!a} comes twice")
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
        raise CheckpointMalformed(f"{what} is {ascii(value)[:80]}, not a JSON object")
    return value
