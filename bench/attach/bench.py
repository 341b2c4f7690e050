"""`attach`: the plug-in's way from a descriptor to a bound and verified model, beside other ways of sharing tensors."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.kit.outcome import Options, Outcome
from bench.kit.paired import Run, RunFailed, paired
from bench.kit.say import say
from bench.kit.worker import Worker
from bench.load import checkpoint
from setup_env import python_envs
from setup_env.cache import Cache

_BYTES = 200 << 20
_PEERS = ["torch-multiprocessing", "safetensors"]


def attach(options: Options) -> Outcome:
    folder = checkpoint.ensure(_BYTES)
    python = python_envs.ensure_engine(Cache())
    contestants: dict[str, Run] = {}
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        for name in ["flashboot", "views", *_PEERS]:
            words: list[str | Path] = [python, "-m", "bench.attach.contestants", name, folder, str(_BYTES)]
            try:
                worker = stack.enter_context(Worker(name, words, logs=options.logs))
                worker.call("run", check=True)
            except RunFailed as error:
                say(f"{name} failed: {error}")
                failures[name] = str(error)
                continue
            contestants[name] = partial(worker.call, "run")
        pairs = paired(contestants, options.rounds, say)
    pairs.failures |= failures
    rows = [pairs.ratio(f"19,945 tensors bound and verified, over {peer}", "flashboot", peer) for peer in _PEERS]
    rows.append(pairs.ratio("the same, over a mapping and a view each without a model", "flashboot", "views"))
    return Outcome(rows, {"samples": pairs.samples})
