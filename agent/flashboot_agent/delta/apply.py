"""Applying a delta to bytes that are read in one place and written to another: images and checkpoints on disk.

Bounded memory: a window of the base, its bodies, and what they change. The result is nobody's until the last chunk was
compared; whoever calls gives it a name then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flashboot_agent.core.errors import DeltaBaseMismatch
from flashboot_agent.delta import words
from flashboot_agent.delta.file import Delta
from flashboot_agent.delta.source import Source
from flashboot_agent.delta.window import Window, locate, told_of, windows


def require_base(delta: Delta, base: Source) -> None:
    """Raises DeltaBaseMismatch, before any byte is read."""
    metadata, nbytes = delta.contents.metadata, delta.contents.nbytes
    if (metadata.subject, nbytes, metadata.content) != (base.subject, base.nbytes, base.content):
        raise DeltaBaseMismatch(
            f"{delta.path} ({metadata.versions()}) is for {metadata.subject} {metadata.content} of {nbytes} bytes; "
            f"{base} is {base.subject} {base.content} of {base.nbytes} bytes"
        )


def apply_to(
    delta: Delta,
    base: Source,
    write: Callable[[int, memoryview], None],
    *,
    threads: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Give all bytes of the result, in order, to `write`, which must not keep them. A base in memory becomes the result
    itself; one that is read from a disk stays.

    Raises DeltaBaseMismatch, DeltaDamaged, what base and `write` raise."""
    for window, view in _results(delta, base, threads=threads, spare=False):
        write(window.offset, view)
        progress(window.end)


def verify(delta: Delta, base: Source, *, threads: int = 1) -> None:
    """Whether it applies to this base, with every digest; nothing is written. Raises as `apply_to`."""
    for _ in _results(delta, base, threads=threads, spare=True):
        pass


def _results(delta: Delta, base: Source, *, threads: int, spare: bool) -> Iterator[tuple[Window, memoryview]]:
    """`spare`: leave memory that the base lends as it is."""
    require_base(delta, base)
    runs = words.table(delta.contents.runs)
    for window in windows(base.nbytes):
        view = base.view(window.offset, window.end - window.offset)
        if spare:
            view = memoryview(bytearray(view))
        located = locate(delta, window, view, runs, reverse=False, threads=threads)
        with told_of(delta.name):
            located.write(view, threads=threads)
        yield window, view
