"""Other software that moves memory between two processes, beside our clone over loopback; without TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench.kit.paired import Run, Sample
from bench.kit.worker import Worker
from setup_env import python_envs
from setup_env.cache import Cache

Peer = Callable[[int, Path], AbstractContextManager[Run]]
"""Bytes and folder for logs → a run, whose bytes were compared once."""
_JOIN_SECONDS = 60.0


@contextmanager
def gloo(nbytes: int, logs: Path) -> Iterator[Run]:
    python = python_envs.ensure_bench(Cache())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [[str(python), "-m", "bench.clone.gloo", str(rank), str(port), str(nbytes)] for rank in (0, 1)]
    with (
        Worker("gloo-0", words[0], logs=logs) as source,
        Worker("gloo-1", words[1], logs=logs) as target,
        ThreadPoolExecutor(1) as beside,
    ):

        def both(op: str, **arguments: object) -> Sample:
            other = beside.submit(source.call, op, _JOIN_SECONDS)
            sample = target.call(op, _JOIN_SECONDS, **arguments)
            other.result()
            return sample

        both("join")
        both("run", check=True)
        yield lambda: both("run")


@contextmanager
def nixl(nbytes: int, logs: Path) -> Iterator[Run]:
    python = str(python_envs.ensure_bench(Cache()))
    env = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
    words = [python, "-m", "bench.clone.nixl"]
    with (
        Worker("nixl-target", [*words, "target", str(nbytes)], logs=logs, env=env) as target,
        Worker("nixl-source", [*words, "source", str(nbytes)], logs=logs, env=env) as source,
    ):
        facts = target.facts
        source.call("meet", _JOIN_SECONDS, name="target", metadata=facts["metadata"], address=facts["address"])
        source.run()
        target.call("check")
        yield source.run


PEERS: dict[str, Peer] = {"gloo": gloo, "nixl": nixl}
