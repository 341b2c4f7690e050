"""`attach`: from a descriptor to 20,000 tensors, by name or in a model, beside other ways of sharing tensors."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from bench.kit.outcome import Options, Outcome
from bench.kit.paired import Pairs, Run, RunFailed, paired
from bench.kit.rows import Row, at_most, failed
from bench.kit.say import say
from bench.kit.worker import Worker
from bench.load import checkpoint
from setup_env import python_envs
from setup_env.cache import Cache

_BYTES = 200 << 20
_PEERS = ["torch-multiprocessing", "safetensors"]
_OURS = {"dict": "by name", "model": "bound on a model and verified"}
_ADDED = at_most(15)
_FRESH_ROUNDS = 15
"""Processes of three seconds, of which some milliseconds count."""


def attach(options: Options) -> Outcome:
    folder = checkpoint.ensure(_BYTES)
    python = python_envs.ensure_engine(Cache())
    contestants: dict[str, Run] = {}
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        for name in [*_OURS, "views", *_PEERS]:
            try:
                worker = stack.enter_context(_worker(name, python, folder, options))
                worker.call("run", check=True)
            except RunFailed as error:
                say(f"{name} failed: {error}")
                failures[name] = str(error)
                continue
            contestants[name] = partial(worker.call, "run")
        pairs = paired(contestants, options.rounds, say)
    pairs.failures |= failures
    rows = [
        pairs.ratio(f"19,945 tensors {how}, over {peer}", ours, peer) for ours, how in _OURS.items() for peer in _PEERS
    ]
    rows += [pairs.ratio(f"{how}, over a mapping and a view each", ours, "views") for ours, how in _OURS.items()]
    with _worker("process", python, folder, options) as worker:
        ways = {f"process {word}": partial(worker.call, "run", attach=word == "with") for word in ("without", "with")}
        fresh = paired(ways, options.rounds if options.quick else _FRESH_ROUNDS, say)
    rows += [_added(fresh), _cpu(fresh)]
    return Outcome(rows, {"samples": {**pairs.samples, **fresh.samples}})


def _worker(name: str, python: Path, folder: Path, options: Options) -> Worker:
    words: list[str | Path] = [python, "-m", "bench.attach.contestants", name, folder, str(_BYTES)]
    return Worker(name, words, logs=options.logs)


def _added(pairs: Pairs) -> Row:
    what = "added to a fresh process's own imports (torch, pydantic) by the public API, 19,945 tensors by name"
    try:
        samples = pairs.of("process with")
        added = sorted(1000 * sample["added"] for sample in samples)
        part = {
            key: 1000 * pairs.median("process with", key) for key in ("before", "after", "main", "thread", "locked")
        }
        imports = pairs.median("process with", "imports")
    except RunFailed as error:
        return failed(what, "ms", _ADDED, error)
    note = (
        f"modules and question {part['before']:.1f} ms, tensors {part['after']:.1f} ms; the main thread's CPU "
        f"{part['main']:.1f} ms; beside the imports "
        f"({imports:.2f} s) a thread of {part['thread']:.1f} ms CPU, at most {part['locked']:.1f} with Python's lock"
    )
    return Row(what, median(added), "ms", _ADDED, note, (added[0], added[-1]))


def _cpu(pairs: Pairs) -> Row:
    what = "added to the CPU time of the whole process"
    try:
        both = zip(pairs.of("process with"), pairs.of("process without"), strict=True)
        added = sorted(1000 * (one["cpu"] - other["cpu"]) for one, other in both)
        note = (
            f"paired; wall clock {pairs.seconds('process with'):.2f} s with, {pairs.seconds('process without'):.2f} s "
            "without"
        )
    except RunFailed as error:
        return failed(what, "ms", None, error)
    return Row(what, median(added), "ms", None, note, (added[0], added[-1]))
