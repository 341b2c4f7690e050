"""Read an arena image into memory, piece by piece; no piece is said to be there before its digests were compared."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import ImageDamaged
from flashboot_agent.load import cache
from flashboot_agent.load.image import Image

PIECE: Final = 64 << 20
"""Bytes between two words about progress; a multiple of DIGEST_CHUNK_BYTES, large enough to keep all threads busy."""


def read_pieces(
    image: Image,
    memory: memoryview,
    start: int,
    end: int,
    *,
    threads: int,
    how: tuple[list[int], cache.Choice],
    progress: _native.BulkProgress,
    nice: int = 0,
) -> Iterator[int]:
    """Fill bytes [start, end) of `memory`, the whole arena; `start` is at a digest chunk. `how` comes from
    `cache.readers([image.fd])`. Yields, again and again, up to where the bytes are there and right.

    Raises ImageDamaged at the first chunk that differs or can't be read, _native.BulkCancelled."""
    if memory.nbytes != image.manifest.bytes or start % DIGEST_CHUNK_BYTES:
        raise ValueError(f"bytes {start} to {end} of {memory.nbytes} of an arena of {image.manifest.bytes}")
    files, choice = how
    for begin in range(start, end, PIECE):
        stop = min(begin + PIECE, end)
        extent = array("Q", (0, image.data_offset + begin, 0, stop - begin))
        with memory[begin:stop] as piece:
            try:
                found = _native.bulk_read(
                    files,
                    extent,
                    piece,
                    threads=threads,
                    direct=choice.direct,
                    digest_chunk=DIGEST_CHUNK_BYTES,
                    progress=progress,
                    nice=nice,
                )
            except _native.BulkError as error:
                _, offset, message = error.args
                raise ImageDamaged(f"{image.path}: at byte {offset}: {message}") from error
        first = begin // DIGEST_CHUNK_BYTES * 8
        expected = image.digests[first : first + len(found)]
        if found != expected:
            chunk = next(i for i in range(len(found) // 8) if found[8 * i : 8 * i + 8] != expected[8 * i : 8 * i + 8])
            wrong = begin + chunk * DIGEST_CHUNK_BYTES
            at = f"{image.path}: at byte {image.data_offset + wrong}"
            raise ImageDamaged(f"{at}: the chunk at arena byte {wrong} differs from its digest")
        yield stop
