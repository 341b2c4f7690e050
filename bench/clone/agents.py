"""Clones between real agents over loopback, and what an agent needs beside its arenas while it makes many."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench.kit.paired import Run, RunFailed, Sample
from bench.kit.say import say
from bench.rig.links import Loopback
from bench.rig.rack import Rack
from flashboot_agent.wire.desired import Lane
from tests.component.agents import IDENTITY, Cluster, Node, wanted

_SECONDS = 120.0


@contextmanager
def cloned(nbytes: int, *, secure: bool) -> Iterator[Run]:
    """Node 1 fills from node 0: from its first request to its seal, as the agent stamps them."""
    with Rack(Loopback(2), nbytes, secure=secure) as rack:
        targets = rack.nodes[1:]

        def run() -> Sample:
            try:
                filled = rack.fill(targets, _SECONDS)[0]
            except (AssertionError, OSError) as error:  # what the nodes of tests raise
                raise RunFailed(f"{type(error).__name__}: {error}") from error
            finally:
                rack.empty(targets)
            seconds = (filled.ended - filled.began).total_seconds()
            return {"seconds": seconds, "transport": filled.arena.transport, "reason": filled.arena.transport_reason}

        yield run


Memory = dict[str, float]
"""Kind of resident memory → MiB."""


def memory(count: int, nbytes: int) -> tuple[Memory, Memory]:
    """The largest resident memory that is no arena, of a source and of a target agent during `count` clones at once.

    Each arena has `nbytes`. Raises RunFailed."""
    cluster = Cluster(forked=False)
    try:
        budget = count * (nbytes + (1 << 20)) + (64 << 20)
        source, target = (cluster.node(name, budget=budget) for name in ("source", "target"))
        arenas = [f"arena-{uuid.uuid4().hex}" for _ in range(count)]
        _seed(source, arenas, nbytes)
        say(f"{count} arenas are seeded")
        uids = [target.publish() for _ in arenas]
        lanes = [Lane(parents=[source.peer])]
        watch = _Watch(source, target)
        with ThreadPoolExecutor(1) as watching:
            largest = watching.submit(watch.run)
            try:
                target.want(
                    *(wanted("clone", arena=a, pods=[u], lanes=lanes) for a, u in zip(arenas, uids, strict=True))
                )
                for arena in arenas:
                    target.until_sealed(arena)
            finally:
                watch.stop.set()
            return largest.result()
    except (AssertionError, OSError) as error:  # what the nodes of tests raise
        raise RunFailed(f"{type(error).__name__}: {error}; {cluster.logs()[-300:]}") from error
    finally:
        cluster.close()


def _seed(source: Node, arenas: list[str], nbytes: int) -> None:
    uids = {arena: source.publish() for arena in arenas}
    source.want(*(wanted("seed", arena=arena, pods=[uid], seed_pod=uid) for arena, uid in uids.items()))
    data = bytes(nbytes)
    for arena, uid in uids.items():
        # One identity for each: an engine that asks for what is resident is given that, and seeds nothing.
        identity = {**IDENTITY, "revision": arena}
        with source.engine(uid, identity=identity) as engine:
            engine.seed(data, identity)


class _Watch:
    """Looks at the resident memory of both agents again and again."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = nodes
        self.stop = threading.Event()

    def run(self) -> tuple[Memory, Memory]:
        largest: list[Memory] = [{} for _ in self._nodes]
        while not self.stop.wait(0.02):
            for number, node in enumerate(self._nodes):
                assert node.agent is not None
                now = _resident(node.agent.pid)
                if sum(now.values()) > sum(largest[number].values()):
                    largest[number] = now
        return largest[0], largest[1]


def _resident(pid: int) -> Memory:
    """Arenas are shared memory and reserved huge pages; all else counts."""
    status = Path(f"/proc/{pid}/status").read_text()
    return {
        key: int(value) / 1024 for key, value in re.findall(r"^(RssAnon|RssFile):\s+(\d+) kB", status, re.MULTILINE)
    }
