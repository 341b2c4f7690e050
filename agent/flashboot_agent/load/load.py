"""FlashLoad of a safetensors checkpoint: all tensors of a folder or a file into one memory, realigned as they are read.

    open (check every header) → allocate (the caller) → read (several threads, digests in the same pass)

Holds always: nothing is allocated before every header was found sound; the files whose headers were checked are the
files that are read (by descriptor, not by name); a file that changes its size meanwhile is told with tensor and offset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from flashboot_agent import _native
from flashboot_agent.core.checkpoint import Shard, shards
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import CheckpointMissing, CheckpointTruncated
from flashboot_agent.load import cache
from flashboot_agent.load.plan import Plan


@dataclass(frozen=True)
class Loaded:
    """What `load_checkpoint` came to."""

    plan: Plan
    digests: bytes
    """8 bytes for each DIGEST_CHUNK_BYTES of the memory (core/digest.py); empty when they were not asked for."""
    how: cache.Choice


class OpenCheckpoint:
    """The open files of a checkpoint whose headers are sound. Made by `open_checkpoint`."""

    def __init__(self, plan: Plan, files: list[int]) -> None:
        self.plan = plan
        self._files = files

    def read(
        self,
        memory: memoryview,
        *,
        threads: int,
        digests: bool = True,
        direct: bool | None = None,
        progress: _native.BulkProgress | None = None,
        nice: int = 0,
    ) -> Loaded:
        """Fill `memory` (`plan.nbytes`, contiguous, writable); the bytes between tensors become zero.

        Raises CheckpointTruncated, CheckpointMissing (a read failed), _native.BulkCancelled."""
        if memory.nbytes != self.plan.nbytes:
            raise ValueError(f"the checkpoint needs {self.plan.nbytes} bytes, the memory has {memory.nbytes}")
        with cache.readers(self._files, direct=direct) as (files, how):
            try:
                table = _native.bulk_read(
                    files,
                    self.plan.extents(),
                    memory,
                    threads=threads,
                    direct=how.direct,
                    digest_chunk=DIGEST_CHUNK_BYTES if digests else 0,
                    progress=progress or _native.BulkProgress(),
                    nice=nice,
                )
            except _native.BulkError as error:
                raise self._named(*error.args) from error
        return Loaded(self.plan, table, how)

    def _named(self, file: int, offset: int, message: str) -> CheckpointTruncated | CheckpointMissing:
        tensor = self.plan.at(file, offset)
        where = f" (tensor {tensor.name!a}, its byte {offset - tensor.file_offset})" if tensor else ""
        name = self.plan.files[file]
        if os.fstat(self._files[file]).st_size <= offset:
            return CheckpointTruncated(f"{name} was cut while it was read: at byte {offset}{where}: {message}")
        return CheckpointMissing(f"{name} can't be read at byte {offset}{where}: {message}")


@contextmanager
def open_checkpoint(path: Path) -> Iterator[OpenCheckpoint]:
    """Open a folder (by its index, or all *.safetensors in it) or one safetensors file; closed at the end.

    Raises CheckpointMissing, CheckpointMalformed, CheckpointIndexMissingShard, CheckpointTruncated."""
    wanted = shards(path) if os.path.isdir(path) else [Shard(path)]  # isdir never raises
    with ExitStack() as stack:
        files = [stack.enter_context(shard.open()) for shard in wanted]
        headers = [(str(shard.path), shard.read_header(file)) for shard, file in zip(wanted, files, strict=True)]
        yield OpenCheckpoint(Plan(headers), [file.fileno() for file in files])


def load_checkpoint(
    path: Path,
    allocate: Callable[[int], memoryview],
    *,
    threads: int,
    digests: bool = True,
    direct: bool | None = None,
    progress: _native.BulkProgress | None = None,
    nice: int = 0,
) -> Loaded:
    """Open, `allocate(nbytes)`, read: see the parts. `allocate` is called once, with a multiple of 64."""
    with open_checkpoint(path) as checkpoint:
        memory = allocate(checkpoint.plan.nbytes)
        return checkpoint.read(memory, threads=threads, digests=digests, direct=direct, progress=progress, nice=nice)
