"""`load`: FlashLoad into arenas of every kind of pages, beside a bare preadv loop and other loaders.

Each kind of pages is a group of its own with all contestants in it, because pairs are only fair within a round. The
page cache is primed right before each run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.kit.native import program
from bench.kit.outcome import Options, Outcome
from bench.kit.pages import offered
from bench.kit.paired import Pairs, Run, RunFailed, Sample, paired
from bench.kit.rows import Goal, Row, at_least, at_most, failed
from bench.kit.say import say
from bench.kit.worker import Worker
from bench.load import checkpoint
from bench.load.ours import THREADS
from flashboot_agent.memory.memfd import Pages
from setup_env import python_envs
from setup_env.cache import Cache
from tests.component.agents import eventually

PEERS = ["flashpack", "runai-model-streamer", "fastsafetensors", "safetensors-safe_open", "safetensors-load_file"]
MIB = 1 << 20
_OVER_PEERS: dict[Pages, float] = {"hugetlb": 2.0, "transparent": 2.0, "small": 0.9}
_CONVERT_SECONDS = 600
_WITH_HEADERS = "flashload with its headers"
_LARGE_ROUNDS = 4
"""Of gigabytes, whose runs are long enough to be steady."""


@dataclass
class Set:
    """One checkpoint, in both formats."""

    name: str
    folder: Path
    files: list[Path]
    flashpack: Path
    peers: Path
    """The Python of the peers."""
    holder: Path

    @property
    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    @property
    def large(self) -> bool:
        """Few fit into memory at once."""
        return self.nbytes >= 1024 * MIB


@dataclass(frozen=True)
class Started:
    """Workers that are ready, and why the others are not."""

    runs: dict[str, Run]
    failures: dict[str, str]


def load(options: Options) -> Outcome:
    outcome = Outcome()
    cache = Cache()
    peers = python_envs.ensure_bench(cache)
    for mib in [200] if options.quick else [200, 3072]:
        folder = checkpoint.ensure(mib * MIB)
        with _holder(4 * mib * MIB) as holder:
            packed = _packed(cache, peers, folder)
            checkpoints = Set(f"{mib} MiB", folder, checkpoint.files(folder), packed, peers, holder)
            with ExitStack() as stack:
                peers_of = {name: _peer(checkpoints, name) for name in (PEERS[:2] if options.quick else PEERS)}
                others = _started(stack, options, checkpoints, peers_of)
                for pages in stack.enter_context(offered(checkpoints.nbytes + 4 * MIB, 2 if checkpoints.large else 3)):
                    _fresh(outcome, options, checkpoints, pages, others)
                    _refill(outcome, options, checkpoints, pages, others)
    return outcome


def _fresh(outcome: Outcome, options: Options, of: Set, pages: Pages, peers: Started) -> None:
    label = f"{of.name}, fresh arena, {pages} pages"
    say(label)
    with ExitStack() as stack:
        pairs = _measured(
            stack,
            options,
            of,
            {
                "preadv": _limit(of, pages, "fresh"),
                "preadv, faults": _limit(of, pages, "fault"),
                "flashload": _ours(of, pages, "fresh", "plain"),
                "flashload, digests": _ours(of, pages, "fresh", "digests"),
            },
            peers,
        )
    outcome.details[label] = pairs.samples
    outcome.rows += [
        pairs.ratio(f"{label}: over a preadv loop, pages made first", "flashload", "preadv", at_least(0.85)),
        pairs.ratio(f"{label}: over a preadv loop, pages made by faults", "flashload", "preadv, faults"),
        pairs.ratio(f"{label}: over the best peer", "flashload", PEERS, at_least(_OVER_PEERS[pages])),
        pairs.ratio(f"{label}: with digests over without", "flashload, digests", "flashload", at_least(0.85)),
        _memory(pairs, f"{label}: peak memory over the model", "flashload", at_most(1.02)),
        _phases(pairs, f"{label}: share of the read in the time"),
    ]


def _refill(outcome: Outcome, options: Options, of: Set, pages: Pages, peers: Started) -> None:
    label = f"{of.name}, resident arena, {pages} pages"
    say(label)
    with ExitStack() as stack:
        pairs = _measured(
            stack,
            options,
            of,
            {
                "preadv": _limit(of, pages, "resident"),
                "flashload": _ours(of, pages, "opened", "plain"),
                **({} if of.large else {_WITH_HEADERS: _ours(of, pages, "resident", "plain")}),
            },
            Started({name: run for name, run in peers.runs.items() if name in PEERS[:2]}, peers.failures),
        )
    outcome.details[label] = pairs.samples
    outcome.rows += [
        pairs.ratio(f"{label}: refill over a preadv loop", "flashload", "preadv"),
        pairs.ratio(f"{label}: refill over the best peer", "flashload", PEERS[:2], at_least(4.0)),
    ]
    if not of.large:
        what = f"{label}: refill with all headers checked again, over the best peer"
        outcome.rows.append(pairs.ratio(what, _WITH_HEADERS, PEERS[:2]))


def _started(stack: ExitStack, options: Options, of: Set, words: dict[str, list[str | Path]]) -> Started:
    """Start all, and check each one's bytes in a run that does not count."""
    runs: dict[str, Run] = {}
    failures: dict[str, str] = {}
    for name, argv in words.items():
        try:
            worker = stack.enter_context(Worker(name, argv, logs=options.logs))
            worker.call("run", check=True)
        except RunFailed as error:
            say(f"{name} failed: {error}")
            failures[name] = str(error)
            continue
        runs[name] = partial(_primed, worker, [of.flashpack] if name == "flashpack" else of.files)
    return Started(runs, failures)


def _measured(stack: ExitStack, options: Options, of: Set, words: dict[str, list[str | Path]], peers: Started) -> Pairs:
    """All in turn, the peers with them."""
    ours = _started(stack, options, of, words)
    rounds = min(options.rounds, _LARGE_ROUNDS) if of.large else options.rounds
    pairs = paired(ours.runs | peers.runs, rounds, say)
    pairs.failures |= ours.failures | peers.failures
    return pairs


def _primed(worker: Worker, files: list[Path]) -> Sample:
    buffer = memoryview(bytearray(4 * MIB))
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return worker.run()


def _limit(of: Set, pages: Pages, mode: str) -> list[str | Path]:
    return [program("load_limit"), str(THREADS), pages, mode, *of.files]


def _ours(of: Set, pages: Pages, mode: str, digests: str) -> list[str | Path]:
    return [sys.executable, "-m", "bench.load.ours", of.folder, of.holder, pages, mode, digests]


def _peer(of: Set, name: str) -> list[str | Path]:
    files = [of.flashpack] if name == "flashpack" else of.files
    return [of.peers, "-m", "bench.load.peers", name, of.folder, json.dumps([str(file) for file in files])]


def _packed(cache: Cache, peers: Path, folder: Path) -> Path:
    def build(into: Path) -> None:
        words: list[str | Path] = [peers, "-m", "bench.load.peers", "convert", folder, into / "model.flashpack"]
        subprocess.run(words, check=True, timeout=_CONVERT_SECONDS)

    return cache.entry("bench-flashpack", [folder.name, str(peers)], build) / "model.flashpack"


@contextmanager
def _holder(budget: int) -> Iterator[Path]:
    """A real holder; its socket."""
    with tempfile.TemporaryDirectory(prefix="fbb-") as run:
        words = [sys.executable, "-m", "flashboot_agent.holder", "--run", run, "--budget-bytes", str(budget)]
        process = subprocess.Popen(words)
        try:
            socket = Path(run, "holder", "holder.sock")
            eventually(socket.exists, "the holder's socket")
            yield socket
        finally:
            process.terminate()
            process.wait(20)


def _memory(pairs: Pairs, what: str, name: str, goal: Goal) -> Row:
    try:
        return Row(what, pairs.largest(name, "peak") / pairs.median(name, "bytes"), "x", goal)
    except RunFailed as error:
        return failed(what, "x", goal, error)


def _phases(pairs: Pairs, what: str) -> Row:
    try:
        parts = {key: pairs.median("flashload", key) for key in ("open", "allocate", "read")}
        share = parts["read"] / pairs.seconds("flashload")
    except RunFailed as error:
        return failed(what, "x", None, error)
    return Row(what, share, "x", None, ", ".join(f"{key} {seconds:.3f} s" for key, seconds in parts.items()))
