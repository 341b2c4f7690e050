"""The agent's own hot loops, one contestant a process: `python -m bench.clone.loops serve|pull|copy …`.

Without agents around them, so that they stand beside C loops that have none either; what agents add is measured by
`bench.clone.bench` with real ones. Digests are always checked: there is no way to switch that off.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from bench.kit import inside
from bench.load.ours import THREADS
from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.memory import memfd
from flashboot_agent.memory.memfd import Pages

PORT = 39118
_REQUEST = 1 << 20
_IN_FLIGHT = 4
_SECONDS = 60.0


class Arena:
    """Memory made as the holder makes it: all pages present, mapped when asked."""

    def __init__(self, nbytes: int, pages: Pages) -> None:
        self.nbytes = nbytes
        self.fd = memfd.create("bench", nbytes, pages)
        for _ in memfd.reserve(self.fd, pages):
            pass
        record = memfd.create("bench-record", mmap.PAGESIZE)
        self.marks = _native.Marks(record, nbytes, [(0, nbytes)])
        os.close(record)

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.fd, os.fstat(self.fd).st_size)

    def close(self) -> None:
        self.marks.close()
        os.close(self.fd)


def _filled(nbytes: int, pages: Pages) -> tuple[Arena, mmap.mmap]:
    arena = Arena(nbytes, pages)
    memory = arena.map()
    memory[:nbytes] = np.random.Generator(np.random.PCG64(3)).bytes(nbytes)
    arena.marks.fill()
    return arena, memory


def _digests(memory: mmap.mmap, nbytes: int) -> bytes:
    with memoryview(memory) as whole, whole[:nbytes] as view:
        return _native.chunk_digests(view, DIGEST_CHUNK_BYTES, THREADS)


def _context(files: list[str], *, server: bool) -> _native.TlsContext | None:
    """`files`: certificate, key and CA, or nothing."""
    return _native.TlsContext(*(Path(file).read_bytes() for file in files), server=server) if files else None


def serve(nbytes: int, pages: Pages, files: list[str]) -> None:
    """Answer children until stdin ends."""
    arena, memory = _filled(nbytes, pages)
    context = _context(files, server=True)
    listener = socket.create_server(("127.0.0.1", PORT))

    def answer(connection: socket.socket) -> None:
        stream = _native.Stream(connection.detach(), "child")
        if context is not None:
            stream.start_tls(context, None, _SECONDS)
        with memoryview(memory) as whole, whole[:nbytes] as view:
            limits = {"idle": _SECONDS, "silence": _SECONDS, "reply": _SECONDS}
            _native.serve(stream, arena.marks, view, _native.Served(), [], nice=0, **limits)
        stream.close()

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    inside.serve({})


def _complete(loop: _native.LanePuller | _native.LaneCopier) -> None:
    while (state := loop.advance(_SECONDS).state) != "done":
        if state != "going":
            raise RuntimeError(f"the loop came to {state}")


def pull(nbytes: int, pages: Pages, files: list[str]) -> None:
    expected_arena, expected = _filled(nbytes, pages)
    digests = _digests(expected, nbytes)
    context = _context(files, server=False)

    def run(check: bool = False) -> dict[str, Any]:
        arena = Arena(nbytes, pages)
        with inside.Meter() as meter:
            memory = arena.map()
            connection = socket.create_connection(("127.0.0.1", PORT), _SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = _native.Stream(connection.detach(), "parent")
            if context is not None:
                stream.start_tls(context, "flashboot://agent/server", _SECONDS)
            with memoryview(memory) as whole, whole[:nbytes] as view:
                puller = _native.LanePuller(
                    stream, arena.marks, 0, view, digests, request_bytes=_REQUEST, in_flight=_IN_FLIGHT, poll=1.0,
                    silence=_SECONDS, overdue_floor=_SECONDS, nice=0,
                )  # fmt: skip
                _complete(puller)
                del puller
        stream.close()
        return _ended(meter, arena, memory, expected, check)

    inside.serve({"run": run})
    expected_arena.close()


def copy(nbytes: int, pages: Pages) -> None:
    source, source_memory = _filled(nbytes, pages)
    digests = _digests(source_memory, nbytes)

    def run(check: bool = False) -> dict[str, Any]:
        arena = Arena(nbytes, pages)
        with inside.Meter() as meter:
            memory = arena.map()
            with (
                memoryview(memory) as whole, whole[:nbytes] as view,
                memoryview(source_memory) as whole_source, whole_source[:nbytes] as source_view,
            ):  # fmt: skip
                copier = _native.LaneCopier(
                    source.marks, source_view, arena.marks, 0, view, digests, threads=THREADS, nice=0
                )
                _complete(copier)
                del copier
        return _ended(meter, arena, memory, source_memory, check)

    inside.serve({"run": run})


def _ended(meter: inside.Meter, arena: Arena, memory: mmap.mmap, expected: mmap.mmap, check: bool) -> dict[str, Any]:
    same = not check or memory[: arena.nbytes] == expected[: arena.nbytes]
    memory.close()
    arena.close()
    if not same:
        raise ValueError("the copy differs from the source")
    return meter.sample


def main() -> None:
    role, size, pages, *files = sys.argv[1:]
    kind: Pages = "hugetlb" if pages == "hugetlb" else "transparent" if pages == "transparent" else "small"
    if role == "serve":
        serve(int(size), kind, files)
    elif role == "pull":
        pull(int(size), kind, files)
    else:
        copy(int(size), kind)


if __name__ == "__main__":
    main()
