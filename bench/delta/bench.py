"""`delta`: sizes of sparse deltas beside the entropy, index and value, and zstd; speeds beside memcpy, per core.

Times are CPU times of the calling thread where one thread works, so that a busy machine changes them less; with two
threads they are wall times. All contestants of a row run in turn. Speeds are the codec's on bytes in memory: files and
networks are another matter.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from bench.delta import entropy, others
from bench.delta.pairs import E4M3, Pair, incompressible, repeated, trained, unrelated
from bench.kit.outcome import Options, Outcome
from bench.kit.paired import Sample, paired
from bench.kit.rows import Row, at_least, at_most
from bench.kit.say import say
from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.delta import words
from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.window import windows
from setup_env import python_envs
from setup_env.cache import Cache

MIB = 1 << 20
SIZES = {0.003: 600, 0.0065: 300, 0.01: 200, 0.024: 95, 0.10: 28}
"""Share of BF16 words that change → how many times fewer bytes."""
ENTROPY = 1.08
SPEEDS = {1: (0.4, 0.5), 16: (0.2, 0.25)}
"""Classes → encode and apply, over memcpy."""
CONTENT = "sha256:" + "0" * 64
SPEED_BYTES = 96 * MIB
MEMORY_BYTES = 256 * MIB


def delta(options: Options) -> Outcome:
    outcome = Outcome()
    cache = Cache()
    of = trained(cache, python_envs.ensure_bench(cache))
    pairs = {rate: of.pair(rate) for rate in SIZES}
    theirs = others.Others(python_envs.ensure_bench_delta(cache))
    for rate, goal in SIZES.items():
        outcome.part(f"size at {rate * 100:g} %", partial(_size, outcome, pairs[rate], goal))
    outcome.part("size of FP8", lambda: _size(outcome, of.fp8_pair(0.0009), 700))
    for rate in (0.0065,) if options.quick else (0.003, 0.0065, 0.024):
        outcome.part(f"others at {rate * 100:g} %", partial(_others, outcome, pairs[rate], theirs))
    nbytes = 24 * MIB if options.quick else SPEED_BYTES
    fast = repeated(pairs[0.0065], nbytes)
    for classes in SPEEDS:
        outcome.part(f"speed, K = {classes}", partial(_speed, outcome, options, fast, classes))
    for pair in (incompressible(nbytes), unrelated(nbytes)):
        outcome.part(pair.name, partial(_dense, outcome, options, pair))
    outcome.part("memory", partial(_memory, outcome, repeated(pairs[0.01], MEMORY_BYTES)))
    return outcome


def _size(outcome: Outcome, pair: Pair, goal: float) -> None:
    shift, mask = (3, 0x0F) if pair.format == E4M3 else (7, 0xFF)
    least = entropy.given_exponent(*pair.words(), shift, mask) / 8
    one, many = (file_bytes(pair, classes) for classes in (1, 16))
    rate, width = pair.changed, 1 if pair.format == E4M3 else 2
    listed = width / (rate * (4 + width))
    note = f"{rate * 100:.3f} % changed; K = 1: {len(pair.base) / one:.0f}; index and value: {listed:.0f}"
    outcome.rows.append(Row(f"{pair.name}: times fewer bytes", len(pair.base) / many, "x", at_least(goal), note))
    note = f"entropy given the exponent: {len(pair.base) / least:.0f} times fewer"
    bound = None if pair.format == E4M3 else at_most(ENTROPY)
    outcome.rows.append(Row(f"{pair.name}: bytes over the entropy", many / least, "x", bound, note))


def file_bytes(pair: Pair, classes: int) -> int:
    """Of the whole file, everything included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "delta")
        base, new = (MemorySource(memoryview(data), pair.runs, CONTENT) for data in (pair.base, pair.new))
        make(base, new, path, Versions(0, 1), classes=classes, threads=2)
        return path.stat().st_size


def _others(outcome: Outcome, pair: Pair, all_: others.Others) -> None:
    """Size and time with K = 1, the quicker and larger one; both digests count for ours."""
    ours = file_bytes(pair, 1)
    memory, seconds = Memory(pair), float("inf")
    for _ in range(5):
        seconds = min(seconds, float(timed(lambda: memory.encode(1))()["seconds"]))
    for name, theirs in all_.measure(pair).items():
        note = f"{len(pair.base) / theirs['bytes']:.0f} times fewer"
        outcome.rows.append(
            Row(f"{pair.name}, K = 1: smaller than {name}", theirs["bytes"] / ours, "x", at_least(1), note)
        )
        note = f"{theirs['seconds'] * 1e3:.1f} ms, ours {seconds * 1e3:.1f} ms"
        ratio = theirs["seconds"] / seconds
        outcome.rows.append(Row(f"{pair.name}, K = 1: encoded faster than {name}", ratio, "x", at_least(1), note))


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
        self.base, self.new, self.target = (mmap.mmap(-1, len(pair.base)) for _ in range(3))
        for each, data in ((self.base, pair.base), (self.new, pair.new), (self.target, pair.base)):
            each.madvise(mmap.MADV_HUGEPAGE)
            each[:] = data
        self.out = bytearray(16 * DIGEST_CHUNK_BYTES)

    def memcpy(self) -> None:
        np.copyto(np.frombuffer(self.target, np.uint8), np.frombuffer(self.base, np.uint8))

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


def _speed(outcome: Outcome, options: Options, pair: Pair, classes: int) -> None:
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
    ]


def _dense(outcome: Outcome, options: Options, pair: Pair) -> None:
    memory = Memory(pair)
    pairs = paired({"memcpy": timed(memory.memcpy), "encode": timed(lambda: memory.encode(16))}, options.rounds, say)
    outcome.details[pair.name] = pairs.samples
    outcome.rows += [
        pairs.ratio(f"{pair.name}: encode, both digests with it, over memcpy", "encode", "memcpy", at_least(0.5)),
        Row(f"{pair.name}: size over raw", file_bytes(pair, 16) / len(pair.base), "x", at_most(1.001)),
    ]


def _memory(outcome: Outcome, pair: Pair) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, of = Path(folder, "delta"), Path(folder, "base")
        base, new = (MemorySource(memoryview(data), pair.runs, CONTENT) for data in (pair.base, pair.new))
        make(base, new, path, Versions(0, 1), threads=1)
        of.write_bytes(pair.base)
        words = [sys.executable, "-m", "bench.delta.memory", str(path), str(of)]
        grown = int(json.loads(subprocess.run(words, check=True, capture_output=True, timeout=300).stdout)["peak"])
        on_disk = Path(folder, "reverse").stat().st_size
    note = f"{grown >> 10} KiB; the way back, on disk: {on_disk / len(pair.base) * 100:.2f} %"
    share = grown / len(pair.base) * 100
    outcome.rows.append(Row(f"{pair.name}: memory to apply over the model", share, "%", at_most(1.5), note))
