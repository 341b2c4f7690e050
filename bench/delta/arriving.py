"""How long until a delta is received and applied, beside the longer one of both alone: at links for which receiving
takes a part of applying, as long, and some times as long."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench.delta.pairs import Pair
from bench.kit.outcome import Options, Outcome
from bench.kit.paired import Sample, paired
from bench.kit.rows import Row, at_most
from bench.kit.say import say
from flashboot_agent.core.digest import chunk_digests
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.sync.http import HttpOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.resident import ResidentArena
from flashboot_agent.sync.tensors import TensorPlaces, TensorSpec

LINKS = (0.5, 1, 3)
"""Time to receive, in times to apply."""
ARRIVING = 1.2


class Follower:
    """An arena that is brought from version 0 to 1 again and again."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self.pair, self.folder = pair, folder
        self.places = TensorPlaces({"w": TensorSpec("BF16", (len(pair.base) // 2,))})
        self.memory = memoryview(bytearray(pair.base))
        self.digests = chunk_digests(self.memory)
        with Publisher(folder / "published", self.places, threads=2) as publisher:
            for version, data in enumerate((pair.base, pair.new)):
                publisher.begin(version)
                publisher.add("w", data)
                publisher.commit().result()
        self.nbytes = (folder / "published" / "0-1.delta").stat().st_size

    def arena(self) -> ResidentArena:
        self.memory[:] = self.pair.base
        source = MemorySource(self.memory, self.places.runs, self.places.content, "arena", self.places.subject)
        return ResidentArena(source, 0, self.digests, self.folder / "arena")

    def run(self, url: str, *, fetch: bool, follow: bool) -> Sample:
        """`fetch` alone is receiving, `follow` what is fetched applying, `follow` alone both at once."""
        shutil.rmtree(self.folder / "spool", ignore_errors=True)
        arena = self.arena()
        with HttpOrigin(url) as origin:
            receiver = Receiver(origin, self.folder / "spool", None)
            began = time.perf_counter()
            chain = receiver.fetch(arena) if fetch else None
            if fetch and follow:
                began = time.perf_counter()
            if follow:
                receiver.follow(arena, chain=chain)
            seconds = time.perf_counter() - began
        if follow and self.memory != self.pair.new:
            raise RuntimeError("what was applied is not the new version")
        return {"seconds": seconds}


@contextmanager
def served(folder: Path, rate: float) -> Iterator[str]:
    words = [sys.executable, "-m", "bench.delta.paced_server", str(folder), str(rate)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


def arriving(outcome: Outcome, options: Options, pair: Pair) -> None:
    with tempfile.TemporaryDirectory() as folder:
        follower = Follower(pair, Path(folder))
        with served(Path(folder, "published"), 1e12) as url:
            applying = median(follower.run(url, fetch=True, follow=True)["seconds"] for _ in range(4))
        for times in LINKS:
            rate = follower.nbytes / (times * applying)
            with served(Path(folder, "published"), rate) as url:
                _link(outcome, options, partial(follower.run, url), f"{pair.name}, a link of {rate / 1e6:.1f} MB/s")


def _link(outcome: Outcome, options: Options, run: Callable[..., Sample], label: str) -> None:
    pairs = paired(
        {
            "received": lambda: run(fetch=True, follow=False),
            "applied": lambda: run(fetch=True, follow=True),
            "as it comes": lambda: run(fetch=False, follow=True),
        },
        options.rounds,
        say,
    )
    outcome.details[label] = pairs.samples
    columns = [[sample["seconds"] for sample in pairs.of(name)] for name in ("received", "applied", "as it comes")]
    figures = [both / max(one, other) for one, other, both in zip(*columns, strict=True)]
    one, other, both = (median(column) for column in columns)
    note = f"received {one:.3f} s, applied {other:.3f} s, as it comes {both:.3f} s: {one + other - both:.3f} s saved"
    what = f"{label}: received and applied over the longer of both"
    outcome.rows.append(Row(what, median(figures), "x", at_most(ARRIVING), note, (min(figures), max(figures))))
