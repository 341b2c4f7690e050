"""`delta`: sizes of sparse deltas beside the entropy, index and value, and zstd; speeds beside memcpy, per core.

All contestants of a row run in turn. Speeds are the codec's on bytes in memory; what a network adds is
measured by itself (arriving.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.delta import entropy, others
from bench.delta.arriving import arriving
from bench.delta.pairs import E4M3, Pair, incompressible, repeated, trained, unrelated
from bench.delta.speed import SPEEDS, Memory, dense, speed, timed
from bench.kit.outcome import Options, Outcome
from bench.kit.rows import Row, at_least, at_most
from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource
from setup_env import python_envs
from setup_env.cache import Cache

MIB = 1 << 20
SIZES = {0.003: 600, 0.0065: 300, 0.01: 200, 0.024: 95, 0.10: 28}
"""Share of BF16 words that change → how many times fewer bytes."""
ENTROPY = 1.08
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
        outcome.part(f"speed, K = {classes}", partial(speed, outcome, options, fast, classes))
    for pair in (incompressible(nbytes), unrelated(nbytes)):
        outcome.part(pair.name, partial(_dense, outcome, options, pair))
    arrives = repeated(pairs[0.0065], 64 * MIB if options.quick else MEMORY_BYTES)
    outcome.part("received and applied", partial(arriving, outcome, options, arrives))
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


def _dense(outcome: Outcome, options: Options, pair: Pair) -> None:
    dense(outcome, options, pair)
    size = file_bytes(pair, 16) / len(pair.base)
    outcome.rows.append(Row(f"{pair.name}: size over raw", size, "x", at_most(1.001)))


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
