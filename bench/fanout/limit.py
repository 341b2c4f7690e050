"""The limit of one link: the C loop between two nodes of the same network namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.kit.certificates import Pair
from bench.kit.native import program
from bench.kit.paired import Run, Sample
from bench.kit.worker import Worker, cpu_seconds
from bench.rig.links import Links

_PORT = "39117"


@contextmanager
def c_loop(
    address: str,
    nbytes: int,
    tls: Pair | None,
    logs: Path,
    *,
    pages: str,
    sender: Sequence[str] = (),
    receiver: Sequence[str] = (),
) -> Iterator[Run]:
    """One transfer of `nbytes` a run. `sender`, `receiver`: words before the command, such as those that enter a
    network namespace. The samples' `cpu` is that of both ends."""
    words = [address, _PORT, pages, str(nbytes)]
    server = [*words, *(map(str, tls.server) if tls else [])]
    client = [*words, *(map(str, tls.client) if tls else [])]
    name = f"c-loop-{'tls' if tls else 'plain'}-{pages}"
    tool = str(program("stream_limit"))
    with (
        Worker(f"{name}-send", [*sender, tool, "send", *server], logs=logs) as source,
        Worker(f"{name}-recv", [*receiver, tool, "recv", *client], logs=logs) as target,
    ):

        def run() -> Sample:
            before = cpu_seconds(source.pid)
            sample = target.run()
            return {**sample, "cpu": sample["cpu"] + cpu_seconds(source.pid) - before}

        yield run


@contextmanager
def between(links: Links, nbytes: int, tls: Pair | None, logs: Path) -> Iterator[Run]:
    """The C loop from node 0 to node 1."""
    with c_loop(links.ip(0), nbytes, tls, logs, pages="small", sender=links.prefix(0), receiver=links.prefix(1)) as run:
        yield run
