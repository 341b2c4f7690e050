"""Where the bytes of a version are, and where those of the next one go: memory, an arena image, a checkpoint.

A checkpoint's bytes are its tensors in the order of their names, each at a multiple of ALIGNMENT, zeros between them:
two checkpoints with the same tensors are two versions of the same bytes, however they are cut into files.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from flashboot_agent.core.checkpoint import Shard, shards
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.core.errors import CheckpointTruncated, ImageDamaged
from flashboot_agent.core.identity import document_digest
from flashboot_agent.delta import words
from flashboot_agent.delta.words import Run
from flashboot_agent.load.image import Image, open_image
from flashboot_agent.load.plan import ALIGNMENT, Placed, Plan
from flashboot_agent.memory.memfd import round_up
from flashboot_agent.wire.layout import Layout


class Source(ABC):
    """One version. `str()` names it in messages."""

    subject: Literal["arena", "checkpoint"]
    content: str
    """Digest of what all versions have in common."""
    nbytes: int
    runs: list[Run]
    version = 0
    """What it says itself; 0 where it does not."""

    @abstractmethod
    def view(self, offset: int, nbytes: int) -> memoryview:
        """These bytes, until the next call."""

    def require(self, offset: int, digests: bytes) -> None:  # noqa: B027 - others say nothing of their own
        """What was read from here on has these digests, chunk by chunk. Raises ImageDamaged where it has others itself:
        what a disk lost must not become a version."""

    def unlike(self, other: Source) -> str:
        """How the other one is no version of this."""
        if self.nbytes != other.nbytes:
            return f"{self.nbytes} and {other.nbytes} bytes"
        return f"{self.content} and {other.content}"


class MemorySource(Source):
    """A resident arena, or whatever else is in memory."""

    def __init__(
        self,
        memory: memoryview,
        runs: list[Run],
        content: str,
        name: str = "memory",
        subject: Literal["arena", "checkpoint"] = "arena",
    ) -> None:
        self.subject = subject
        self.memory, self.runs, self.content, self.nbytes = memory, runs, content, memory.nbytes
        self._name = name

    def view(self, offset: int, nbytes: int) -> memoryview:
        return self.memory[offset : offset + nbytes]

    def __str__(self) -> str:
        return self._name


class ImageSource(Source):
    """An arena image. Raises ImageDamaged."""

    subject = "arena"

    def __init__(self, image: Image) -> None:
        self.image = image
        self.nbytes = image.manifest.bytes
        self.content = image.manifest.layout_digest
        self.version = image.manifest.version
        try:
            self.runs = words.of_layout(Layout.from_bytes(image.layout))
        except ValueError as error:
            raise ImageDamaged(f"{image.path}: {error}") from error
        self._buffer = bytearray()

    def view(self, offset: int, nbytes: int) -> memoryview:
        self._buffer = _sized(self._buffer, nbytes)
        view = memoryview(self._buffer)[:nbytes]
        if _read_into(self.image.fd, view, self.image.data_offset + offset) < nbytes:
            raise ImageDamaged(f"{self.image.path} was cut while it was read")
        return view

    def read_into(self, memory: memoryview) -> None:
        """All of it, compared with its digests. Raises ImageDamaged."""
        step = 8 * DIGEST_CHUNK_BYTES
        for begin in range(0, self.nbytes, step):
            size = min(step, self.nbytes - begin)
            memory[begin : begin + size] = self.view(begin, size)
        self.require(0, chunk_digests(memory))

    def require(self, offset: int, digests: bytes) -> None:
        first = offset // DIGEST_CHUNK_BYTES
        own = self.image.digests[8 * first : 8 * first + len(digests)]
        for at in range(0, len(digests), 8):
            if digests[at : at + 8] != own[at : at + 8]:
                raise ImageDamaged(f"{self}: chunk {first + at // 8} differs from its digest; take another copy")

    def __str__(self) -> str:
        return str(self.image.path)


class TensorImage:
    """Tensors as one image: in the order of their names (bytes of UTF-8), each at the next multiple of ALIGNMENT."""

    def __init__(self, tensors: Iterable[Placed]) -> None:
        self.placed = placed = list(_by_name(tensors))
        self.nbytes = max((tensor.offset + tensor.nbytes for tensor in placed), default=0)
        self.content = document_digest("\n".join(f"{t.name!r} {t.dtype} {t.shape}" for t in placed).encode())
        self.runs = words.runs(
            [(t.offset, words.OF_SAFETENSORS.get(t.dtype, words.BYTES)) for t in placed if t.nbytes], self.nbytes
        )


class CheckpointSource(Source):
    """The tensors of a checkpoint, at the places that the plan gives them. Raises what its reading raises."""

    subject = "checkpoint"

    def __init__(self, path: Path, plan: Plan, files: list[int]) -> None:
        self.path, self.plan, self.files = path, plan, files
        image = TensorImage(plan.tensors)
        self.placed, self.nbytes, self.content, self.runs = image.placed, image.nbytes, image.content, image.runs
        self._ends = [tensor.offset + tensor.nbytes for tensor in self.placed]
        self._buffer = bytearray()

    def view(self, offset: int, nbytes: int) -> memoryview:
        self._buffer = _sized(self._buffer, nbytes)
        view = memoryview(self._buffer)[:nbytes]
        view[:] = bytes(nbytes)
        for file, at, begin, end in self.pieces(offset, nbytes):
            if _read_into(self.files[file], view[begin:end], at) < end - begin:
                raise CheckpointTruncated(f"{self.plan.files[file]} was cut while it was read")
        return view

    def pieces(self, offset: int, nbytes: int) -> Iterator[tuple[int, int, int, int]]:
        """File, byte of it, begin and end from `offset` on, of each tensor's part in this range."""
        for number in range(bisect_right(self._ends, offset), len(self.placed)):
            tensor = self.placed[number]
            if tensor.offset >= offset + nbytes:
                return
            begin, end = max(tensor.offset, offset), min(tensor.offset + tensor.nbytes, offset + nbytes)
            if begin < end:
                yield tensor.file, tensor.file_offset + begin - tensor.offset, begin - offset, end - offset

    def __str__(self) -> str:
        return str(self.path)


@contextmanager
def open_source(path: Path) -> Iterator[ImageSource | CheckpointSource]:
    """An arena image (a file), or a checkpoint (a folder, or one safetensors file).

    Raises ImageDamaged, Checkpoint…, FileNotFoundError."""
    if not path.is_dir() and path.suffix != ".safetensors":
        with open_image(path) as image:
            yield ImageSource(image)
        return
    with ExitStack() as stack:
        headers, files = [], []
        for shard in shards(path) if path.is_dir() else [Shard(path)]:
            file = stack.enter_context(shard.open())
            headers.append((str(shard.path), shard.read_header(file)))
            files.append(file.fileno())
        yield CheckpointSource(path, Plan(headers), files)


def _by_name(tensors: Iterable[Placed]) -> Iterator[Placed]:
    end = 0
    for tensor in sorted(tensors, key=lambda each: each.name.encode("utf-8", "surrogatepass")):
        yield tensor._replace(offset=end)
        end = round_up(end + tensor.nbytes, ALIGNMENT)


def _sized(buffer: bytearray, nbytes: int) -> bytearray:
    return buffer if len(buffer) >= nbytes else bytearray(nbytes)


def _read_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill the view; less at the file's end."""
    done = 0
    while done < view.nbytes and (got := os.preadv(fd, [view[done:]], offset + done)):
        done += got
    return done
