"""Read one chunk of a parent's arena, as a clone would: the proof that its data path works. In a thread.

It takes the same way as a clone (connect, metadata, a lane, digests), with a lane of one chunk. Nothing is kept.
"""

from __future__ import annotations

import mmap
import os
import time
from contextlib import ExitStack, closing

from flashboot_agent._native import Marks
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import DeadlineExceeded, DigestMismatch
from flashboot_agent.transport.base import Pull, Sink

PAGE = 4096


def read_chunk(pull: Pull, seconds: float) -> None:
    """The first chunk, compared with its digest, within so many seconds.

    Raises what `Pull.advance` raises, DigestMismatch, DeadlineExceeded. The pull is closed then and otherwise."""
    meta, deadline = pull.meta, time.monotonic() + seconds
    end = min(DIGEST_CHUNK_BYTES, meta.nbytes)
    bounds = [(0, end)] + ([(end, meta.nbytes)] if end < meta.nbytes else [])
    with closing(pull), ExitStack() as stack:
        record, memory = _sparse(stack, "probe-marks", PAGE), _sparse(stack, "probe-bytes", meta.nbytes)
        marks = Marks(record, meta.nbytes, bounds)
        stack.callback(marks.close)
        # As large as the arena, since that is what a sink is; only the chunk's own pages are ever touched.
        mapped = stack.enter_context(mmap.mmap(memory, meta.nbytes))
        view = stack.enter_context(memoryview(mapped))
        stack.callback(pull.close)  # before the memory, which it keeps hold of
        sink = Sink(view, marks, 0, meta.chunk_digests, DIGEST_CHUNK_BYTES)
        while (left := deadline - time.monotonic()) > 0:
            progress = pull.advance(sink, left)
            if progress.state == "done":
                return
            if progress.state == "differs":
                raise DigestMismatch(f"{meta.arena}: the chunk at byte 0 differs from its digest")
        raise DeadlineExceeded(f"{meta.arena}: no chunk within {seconds:.0f} s")


def _sparse(stack: ExitStack, name: str, nbytes: int) -> int:
    fd = os.memfd_create(name)
    stack.callback(os.close, fd)
    os.ftruncate(fd, nbytes)
    return fd
