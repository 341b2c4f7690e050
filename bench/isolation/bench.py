"""`isolation`: an engine's speed while the agent beside it feeds clones, against its speed alone.

The engine and the source's agent share one core, the cloning node has another: on a machine with few cores it is the
only way to see what the source costs, and not what the target does.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench.kit.outcome import Options, Outcome
from bench.kit.paired import RunFailed, Sample, paired
from bench.kit.say import say
from bench.kit.worker import Worker
from flashboot_agent.wire.desired import Lane
from setup_env import python_envs
from setup_env.cache import Cache
from tests.component.agents import Cluster, Node, wanted

MIB = 1 << 20
_CAP = 100 * MIB
_NICE = {"not nice": "0", "nice": "10"}
_RUN_SECONDS = 300.0


def isolation(options: Options) -> Outcome:
    outcome = Outcome()
    outcome.part("an engine beside a source", lambda: _measure(outcome, options))
    return outcome


def _measure(outcome: Outcome, options: Options) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RunFailed("it takes two cores: one for the engine and the source, one for the target")
    nbytes = (64 if options.quick else 512) * MIB
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fbb-")))
        python = python_envs.ensure_engine(Cache())
        words: list[str | Path] = ["taskset", "-c", str(cores[0]), python, "-m", "bench.isolation.engine", folder]
        engine = stack.enter_context(Worker("engine", words, logs=options.logs, seconds=_RUN_SECONDS, ready=700.0))
        say("the engine is ready")
        racks = {name: stack.enter_context(_rack(nbytes, cores, nice)) for name, nice in _NICE.items()}
        contestants = {"alone": partial(engine.call, "run")}
        for name, (source, target, arena) in racks.items():
            for cap in (None, _CAP):
                word = f"{name}, {'no cap' if cap is None else f'cap of {cap // MIB} MiB/s'}"
                contestants[word] = partial(_beside, engine, source, target, arena, cap)
        pairs = paired(contestants, min(options.rounds, 5), say)
    outcome.details["samples"] = pairs.samples
    for word in contestants:
        if word != "alone":
            outcome.rows.append(pairs.ratio(f"tokens per second beside a clone, {word}, over alone", word, "alone"))


@contextmanager
def _rack(nbytes: int, cores: list[int], nice: str) -> Iterator[tuple[Node, Node, str]]:
    """A seeded source on the engine's core and an empty target on another."""
    cluster = Cluster(forked=False)
    try:
        arena = f"arena-{uuid.uuid4().hex}"
        nodes = []
        for name, core in (("source", cores[0]), ("target", cores[1])):
            node = cluster.node(name, budget=nbytes + 64 * MIB, start=False)
            node.prefix = ["taskset", "-c", str(core)]
            node.start_holder()
            node.start_agent(FLASHBOOT_NICE=nice)
            nodes.append(node)
        source, target = nodes
        uid = source.publish()
        source.want(wanted("seed", arena=arena, pods=[uid], seed_pod=uid))
        with source.engine(uid) as engine:
            engine.seed(bytes(nbytes))
        yield source, target, arena
    finally:
        cluster.close()


def _beside(engine: Worker, source: Node, target: Node, arena: str, cap: int | None) -> Sample:
    """A run of the engine while the target clones again and again."""
    source.want(wanted("hold", arena=arena, egress_bytes_per_second=cap))
    stop = threading.Event()
    with ThreadPoolExecutor(1) as beside:
        clones = beside.submit(_clone_until, stop, source, target, arena)
        try:
            sample = engine.run()
        finally:
            stop.set()
        return {**sample, "cloned_bytes_per_second": clones.result() / sample["seconds"]}


def _clone_until(stop: threading.Event, source: Node, target: Node, arena: str) -> int:
    """Bytes that left the source."""
    before = source.arena(arena)
    while not stop.is_set():
        uid = target.publish()
        target.want(wanted("clone", arena=arena, pods=[uid], lanes=[Lane(parents=[source.peer])]))
        while not stop.wait(0.05) and not ((got := target.arena(arena)) and got.state == "sealed"):
            pass
        target.clear()
    after = source.arena(arena)
    return after.bytes_out - before.bytes_out if before and after else 0
