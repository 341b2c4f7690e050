"""Check a Hugging Face checkpoint before an engine touches it, so that a bad file gets a name, not a stack trace.

Reads config.json, the index and the headers of the shards; never a tensor. Everything it raises is Retryable: whoever
puts the file right need not restart anything. Links are followed, as the Hugging Face cache needs; names in an index
may not leave the folder.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from flashboot_agent.core.errors import (
    CheckpointIndexMissingShard,
    CheckpointMalformed,
    CheckpointMissing,
    CheckpointTruncated,
    FlashBootError,
)
from flashboot_agent.core.safetensors_header import (
    LENGTH_BYTES,
    MAX_HEADER,
    Header,
    check_header,
    header_length,
    json_object,
)

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
_NUMBERED: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


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
    config = json_object(_read(folder / CONFIG, CheckpointMissing), str(folder / CONFIG))
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise CheckpointMalformed(f"{folder / CONFIG}: architectures must be a list with the model's class name")
    return config


def check_weights(folder: Path) -> Weights:
    """Check all weight files: those that the index names, or all *.safetensors when there is no index.

    Raises CheckpointMissing, CheckpointMalformed, CheckpointIndexMissingShard, CheckpointTruncated."""
    wanted = shards(folder)
    tensors = data_bytes = 0
    for file, names in wanted.items():
        with open_file(folder / file, CheckpointIndexMissingShard) as opened:
            header = read_header(opened, folder / file)
        require_placed(names, header, folder / file)
        tensors += len(header.tensors)
        data_bytes += header.data_bytes
    return Weights(tuple(wanted), tensors, data_bytes)


def shards(folder: Path) -> dict[str, frozenset[str]]:
    """File name, in order → the tensors that the index places in it; none when there is no index.

    Raises CheckpointMissing, CheckpointMalformed, CheckpointIndexMissingShard."""
    _require_folder(folder)
    return dict(sorted(_shards(folder).items()))


def require_placed(names: frozenset[str], header: Header, path: Path) -> None:
    """Raises CheckpointMalformed when the index places a tensor in a file that does not have it."""
    absent = sorted(names.difference(tensor.name for tensor in header.tensors)) if names else []
    if absent:
        raise CheckpointMalformed(f"{path} has no tensor {absent[0]!a}, which {INDEX} places there")


def read_header(file: BinaryIO, path: Path) -> Header:
    """The checked header of an open weight file; its descriptor stands behind it then.

    Raises CheckpointMissing, CheckpointMalformed, CheckpointTruncated."""
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


def _shards(folder: Path) -> dict[str, frozenset[str]]:
    """File name → the tensors that the index places in it."""
    if _exists(folder / INDEX):
        return _indexed(folder)
    try:
        files = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".safetensors"))
    except OSError as error:
        raise CheckpointMissing(f"{folder} can't be listed: {error.strerror}") from error
    if not files:
        raise CheckpointMissing(f"{folder} has neither {INDEX} nor any *.safetensors file")
    _require_complete_sets(folder, files)
    return dict.fromkeys(files, frozenset())


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


def _indexed(folder: Path) -> dict[str, frozenset[str]]:
    index = folder / INDEX
    placed = json_object(_read(index, CheckpointMissing), str(index)).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise CheckpointMalformed(f"{index}: weight_map must be an object of tensor → file, and not be empty")
    shards: dict[str, set[str]] = {}
    for tensor, file in placed.items():
        if not isinstance(file, str) or not _stays_inside(file):
            raise CheckpointMalformed(
                f"{index}: tensor {tensor!a} is placed in {file!a}, no file name inside the folder"
            )
        shards.setdefault(file, set()).add(tensor)
    for file in sorted(shards):
        if not _exists(folder / file):
            raise CheckpointIndexMissingShard(f"{index} names {file}, which is not there")
    return {file: frozenset(tensors) for file, tensors in shards.items()}


def _stays_inside(file: str) -> bool:
    """Whether a name from an index is a plain relative path that a file system can have."""
    path = PurePosixPath(file)
    if not file or "\0" in file or path.is_absolute() or ".." in path.parts or not path.parts:
        return False
    try:
        return all(len(part.encode()) <= 255 for part in path.parts) and len(file.encode()) < 4096
    except UnicodeEncodeError:  # half a surrogate pair, which JSON allows
        return False


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
