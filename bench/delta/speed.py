"""Speeds of the codec on bytes in memory, beside memcpy; and what two cores give it, beside what they give at all.

Times are CPU times of the calling thread where one thread works; with two threads they are wall times. "At all": two
threads that copy, which the memory bounds, and two that hash what lies in their caches, which nothing but the cores
bounds. A goal above both says something about the machine, not about the codec.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.delta.pairs import Pair
from bench.kit.outcome import Options, Outcome
from bench.kit.paired import Sample, paired
from bench.kit.rows import at_least
from bench.kit.say import say
from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.delta import words
from flashboot_agent.delta.window import windows

SPEEDS = {1: (0.4, 0.5), 16: (0.2, 0.25)}
"""Classes → encode and apply, over memcpy."""
IN_CACHE = bytes(64 << 10)
HASHES = 1000
"""Of IN_CACHE, some 50 ms."""


class Encoded:
    """Rows, bodies and where each chunk's body begins."""

    def __init__(self, rows: array[int], bodies: bytes) -> None:
        self.rows, self.bodies = rows, bodies
        self.starts = [0, *np.cumsum(rows[1::5]).tolist()]


def encoded(pair: Pair, classes: int) -> Encoded:
    out = bytearray(len(pair.base) + DIGEST_CHUNK_BYTES)
    rows = array("Q", _native.delta_encode(pair.base, pair.new, 0, words.table(pair.runs), classes, out, threads=1))
    places = range(0, len(pair.base), DIGEST_CHUNK_BYTES)
    raw = [rows[5 * i] == 2 for i in range(len(places))]
    pieces = [(pair.new if raw[i] else out)[at : at + rows[5 * i + 1]] for i, at in enumerate(places)]
    return Encoded(rows, b"".join(pieces))


class Memory:
    """The pair's bytes in pages that are there."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.runs = pair, words.table(pair.runs)
        self.base, self.new, self.target, self.spare = (mmap.mmap(-1, len(pair.base)) for _ in range(4))
        for each, data in (
            (self.base, pair.base),
            (self.new, pair.new),
            (self.target, pair.base),
            (self.spare, pair.base),
        ):
            each.madvise(mmap.MADV_HUGEPAGE)
            each[:] = data
        self.out = bytearray(16 * DIGEST_CHUNK_BYTES)

    def memcpy(self) -> None:
        np.copyto(np.frombuffer(self.target, np.uint8), np.frombuffer(self.base, np.uint8))

    def copy_part(self, part: int, parts: int) -> None:
        share = -(-len(self.base) // parts)
        of = slice(part * share, (part + 1) * share)
        np.copyto(np.frombuffer(self.spare, np.uint8)[of], np.frombuffer(self.base, np.uint8)[of])

    def encode(self, classes: int, threads: int = 1) -> None:
        base, new = memoryview(self.base), memoryview(self.new)
        for window in windows(len(base), 16):
            part = slice(window.offset, window.end)
            _native.delta_encode(base[part], new[part], window.offset, self.runs, classes, self.out, threads=threads)

    def apply(self, of: Encoded, *, threads: int = 1, reverse: bool = False) -> None:
        target, bodies = memoryview(self.target), memoryview(of.bodies)
        for window in windows(len(target)):
            view = target[window.offset : window.end]
            rows, body = (
                of.rows[5 * window.first : 5 * window.last],
                bodies[of.starts[window.first] : of.starts[window.last]],
            )
            located = _native.DeltaWindow(view, window.offset, self.runs, rows, body, reverse=reverse, threads=threads)
            located.write(view, threads=threads)


def hash_part(part: int, parts: int) -> None:
    for _ in range(part, HASHES, parts):
        hashlib.sha256(IN_CACHE).digest()


def on_cores(many: int, work: Callable[[int, int], None]) -> None:
    """`work(part, parts)` on as many threads; both kinds of work leave Python's lock."""
    with ThreadPoolExecutor(many) as pool:
        for _ in pool.map(work, range(many), [many] * many):
            pass


def timed(work: Callable[[], None], clock: Callable[[], float] = time.thread_time) -> Callable[[], Sample]:
    def run() -> Sample:
        began = clock()
        work()
        return {"seconds": clock() - began}

    return run


def after(prepare: Callable[[], None], run: Callable[[], Sample]) -> Callable[[], Sample]:
    def both() -> Sample:
        prepare()
        return run()

    return both


def speed(outcome: Outcome, options: Options, pair: Pair, classes: int) -> None:
    encode, apply = SPEEDS[classes]
    memory, of = Memory(pair), encoded(pair, classes)
    wall = time.perf_counter
    pairs = paired(
        {
            "memcpy": timed(memory.memcpy),
            "encode": timed(lambda: memory.encode(classes)),
            "apply": after(memory.memcpy, timed(lambda: memory.apply(of))),
            "apply and keep the way back": after(memory.memcpy, timed(lambda: memory.apply(of, reverse=True))),
            "one core": after(memory.memcpy, timed(lambda: memory.apply(of), wall)),
            "two cores": after(memory.memcpy, timed(lambda: memory.apply(of, threads=2), wall)),
            "copy, one core": timed(lambda: on_cores(1, memory.copy_part), wall),
            "copy, two cores": timed(lambda: on_cores(2, memory.copy_part), wall),
            "hash, one core": timed(lambda: on_cores(1, hash_part), wall),
            "hash, two cores": timed(lambda: on_cores(2, hash_part), wall),
        },
        options.rounds,
        say,
    )
    if memory.target[:] != pair.new:
        raise RuntimeError("what was applied is not the new version")
    label = f"{pair.name}, K = {classes}"
    outcome.details[label] = pairs.samples
    outcome.rows += [
        pairs.ratio(f"{label}: encode, both digests with it, over memcpy", "encode", "memcpy", at_least(encode)),
        pairs.ratio(f"{label}: apply with both digests over memcpy", "apply", "memcpy", at_least(apply)),
        pairs.ratio(f"{label}: the same, and the way back kept", "apply and keep the way back", "memcpy"),
        pairs.ratio(f"{label}: apply on two cores over one", "two cores", "one core", at_least(1.8)),
        pairs.ratio(f"{label}: limit, memcpy on two cores over one", "copy, two cores", "copy, one core"),
        pairs.ratio(f"{label}: limit, hashing in the cache on two cores over one", "hash, two cores", "hash, one core"),
    ]


def dense(outcome: Outcome, options: Options, pair: Pair) -> None:
    memory = Memory(pair)
    pairs = paired({"memcpy": timed(memory.memcpy), "encode": timed(lambda: memory.encode(16))}, options.rounds, say)
    outcome.details[pair.name] = pairs.samples
    row = pairs.ratio(f"{pair.name}: encode, both digests with it, over memcpy", "encode", "memcpy", at_least(0.5))
    outcome.rows.append(row)
