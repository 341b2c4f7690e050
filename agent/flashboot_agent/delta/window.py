"""One window of chunks of a delta, located in the base's bytes; what both ways of applying have in common."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import DeltaBaseMismatch, DeltaDamaged
from flashboot_agent.delta.file import Delta

WINDOW_CHUNKS: Final = 8
"""Their bytes stay in the last cache between locating and writing."""


class Window(NamedTuple):
    first: int
    """Chunk."""
    last: int
    offset: int
    end: int


def windows(nbytes: int, chunks: int = WINDOW_CHUNKS) -> Iterator[Window]:
    step = chunks * DIGEST_CHUNK_BYTES
    for offset in range(0, nbytes, step):
        end = min(offset + step, nbytes)
        yield Window(offset // DIGEST_CHUNK_BYTES, -(-end // DIGEST_CHUNK_BYTES), offset, end)


def locate(
    delta: Delta, window: Window, base: memoryview, runs: array[int], *, reverse: bool, threads: int
) -> _native.DeltaWindow:
    """Compare the base's digests and decode; nothing is written. Raises DeltaBaseMismatch, DeltaDamaged."""
    rows = delta.contents.table.rows(window.first, window.last)
    bodies = delta.bodies(window.first, window.last)
    with told_of(delta.name):
        return _native.DeltaWindow(base, window.offset, runs, rows, bodies, reverse=reverse, threads=threads)


@contextmanager
def told_of(name: str) -> Iterator[None]:
    """What C++ found wrong, as an error that names file, chunk and versions."""
    try:
        yield
    except _native.DeltaBroken as broken:
        fault, chunk, what = broken.args
        where = f"{name}, chunk {chunk}"
        if fault == "base":
            raise DeltaBaseMismatch(f"{where}: {what}; a delta for the version that is there is needed") from broken
        raise DeltaDamaged(f"{where}: {what}; fetch the delta or these bytes again") from broken
