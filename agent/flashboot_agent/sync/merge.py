"""Several deltas as one: the version that they make of a base, window by window, as a source like any other.

The base's bytes are needed: positions in a delta are ranks among the elements of its base. A checkpoint that the
trainer saved is one; nothing is written but the merged delta, and memory is a few windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import DeltaBaseMismatch
from flashboot_agent.delta import words
from flashboot_agent.delta.apply import require_base
from flashboot_agent.delta.file import Delta
from flashboot_agent.delta.source import Source
from flashboot_agent.delta.window import Window, locate, told_of


class Result(Source):
    """What deltas, one after another, make of a base."""

    def __init__(self, base: Source, deltas: Sequence[Delta], *, threads: int = 1) -> None:
        """Raises DeltaBaseMismatch."""
        require_base(deltas[0], base)
        for first, then in pairwise(deltas):
            _require_next(first, then)
        self.subject, self.content, self.nbytes, self.runs = base.subject, base.content, base.nbytes, base.runs
        self._base, self._threads = base, threads
        self._deltas = [(delta, words.table(delta.contents.runs)) for delta in deltas]
        self._buffer = bytearray()

    def view(self, offset: int, nbytes: int) -> memoryview:
        """`offset` is at a chunk, and so is the end, or it is the image's. Raises DeltaBaseMismatch, DeltaDamaged."""
        if len(self._buffer) < nbytes:
            self._buffer = bytearray(nbytes)
        view = memoryview(self._buffer)[:nbytes]
        view[:] = self._base.view(offset, nbytes)
        end = offset + nbytes
        window = Window(offset // DIGEST_CHUNK_BYTES, -(-end // DIGEST_CHUNK_BYTES), offset, end)
        for delta, runs in self._deltas:
            located = locate(delta, window, view, runs, reverse=False, threads=self._threads)
            with told_of(delta.name):
                located.write(view, threads=self._threads)
        return view

    def __str__(self) -> str:
        return f"{self._base} with {', '.join(str(delta.path) for delta, _ in self._deltas)}"


def _require_next(first: Delta, then: Delta) -> None:
    before, after = first.contents.metadata, then.contents.metadata
    result = (before.subject, before.content, first.contents.nbytes, before.new_version, before.result_digest)
    if result != (after.subject, after.content, then.contents.nbytes, after.base_version, after.base_digest):
        raise DeltaBaseMismatch(f"{then.path} ({after.versions()}) does not begin where {first.path} ends")
