"""Prometheus metrics: what is, read from the state when scraped; what was, counted here."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flashboot_agent._native import BYTES_OUT, REFETCHED
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.clone import CloneDone
from flashboot_agent.node.load import LoadDone
from flashboot_agent.node.rules import Answer
from flashboot_agent.node.state import NodeState
from flashboot_agent.wire.arena import ArenaState
from flashboot_agent.wire.observed_pod import PodPhase

ARENA_STATES: Final = get_args(ArenaState)
POD_PHASES: Final = get_args(PodPhase)
OUTCOMES: Final[Mapping[Answer, str]] = {"ready": "resident", "seed": "checkpoint", "refuse": "refused"}
BYTES, CHUNKS, REPAIRS = "bytes", "chunks", "repairs"
SECONDS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300)


class Metrics:
    """One registry of its own, so that tests may have several agents in a process."""

    def __init__(self, node: NodeState) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(node))
        self._clones = Histogram(
            "flashboot_clone_seconds",
            "Time of a clone, from connecting to its last parent to the seal",
            buckets=SECONDS,
            registry=self._registry,
        )

        self._loads = Histogram(
            "flashboot_load_seconds",
            "Time of a load from an arena image, from opening it to the seal",
            buckets=SECONDS,
            registry=self._registry,
        )

        self._updates = Histogram(
            "flashboot_update_barred_seconds",
            "For how long nobody new got an arena that was brought to its next version in place, per delta",
            buckets=SECONDS,
            registry=self._registry,
        )
        self._failures = Counter(
            "flashboot_update_failures",
            "Attempts to update an arena in place that failed, and left it as it was",
            ["reason"],
            registry=self._registry,
        )

    def loaded(self, done: LoadDone) -> None:
        self._loads.observe(done.seconds)

    def cloned(self, done: CloneDone) -> None:
        self._clones.observe(done.seconds)

    def updated(self, seconds: float) -> None:
        self._updates.observe(seconds)

    def update_failed(self, reason: str) -> None:
        self._failures.labels(reason).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)


Key = tuple[str, ...]
"""What is counted, then its labels."""


class _NodeCollector(Collector):
    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._here: dict[str, Tally[Key]] = {}
        """Arena → its counters when last looked at."""
        self._gone: Tally[Key] = Tally()
        """Of the arenas that were dropped: no counter may fall."""

    def collect(self) -> Iterator[Metric]:
        node, arenas = self._node, self._node.store.all()
        phases = Tally(str(pod.phase) for pod in node.pods)
        states = Tally(str(arena.state) for arena in arenas)
        yield _gauge("flashboot_arenas", "Arenas on this node", "state", states, ARENA_STATES)
        yield _gauge("flashboot_pods", "Pods with a door volume on this node", "phase", phases, POD_PHASES)
        totals = self._totals(arenas)
        bytes_moved = CounterMetricFamily(
            "flashboot_clone_bytes",
            "Bytes of arenas received from parents (in) and sent to children (out)",
            labels=["transport", "direction"],
        )
        for what, *labels in sorted(totals):
            if what == BYTES:
                bytes_moved.add_metric(labels, totals[what, *labels])
        yield bytes_moved
        yield CounterMetricFamily("flashboot_refetched_chunks", "Chunks that differed from a digest", totals[CHUNKS,])
        yield CounterMetricFamily("flashboot_clone_repairs", "Lanes that left a failed parent", totals[REPAIRS,])
        yield CounterMetricFamily("flashboot_arenas_evicted", "Copies that made room for other arenas", node.evictions)
        mismatches = CounterMetricFamily(
            "flashboot_identity_mismatches",
            "Engines of another identity than the arena named for them, by what they got",
            labels=["outcome"],
        )
        for answer, outcome in OUTCOMES.items():
            mismatches.add_metric([outcome], node.mismatches[answer])
        yield mismatches
        images = node.images
        yield GaugeMetricFamily("flashboot_image_bytes", "Bytes of arena images on disk", value=images.used_bytes)
        yield CounterMetricFamily("flashboot_images_damaged", "Arena images that were not believed", images.damages)
        stats = node.stats
        yield GaugeMetricFamily("flashboot_holder_up", "1 while the holder answers", value=int(stats is not None))
        yield GaugeMetricFamily(
            "flashboot_memory_used_bytes", "Bytes that the holder keeps", value=stats.used_bytes if stats else 0
        )
        yield GaugeMetricFamily(
            "flashboot_memory_budget_bytes", "Bytes that the holder may keep", value=stats.budget_bytes if stats else 0
        )
        if self._node.identity is not None:
            end = self._node.identity.credentials.expires_at
            yield GaugeMetricFamily(
                "flashboot_certificate_expires_timestamp_seconds",
                "When this agent's certificate ends; 0 when it has none that counts",
                value=end.timestamp() if end is not None else 0,
            )

    def _totals(self, arenas: list[Arena]) -> Tally[Key]:
        # With the time of its making, since the same name may come again.
        here = {f"{arena.name}/{arena.record.created_at}": _counters(arena) for arena in arenas}
        for name in self._here.keys() - here.keys():
            self._gone.update(self._here[name])
        self._here = here
        totals = Tally(self._gone)
        for counters in here.values():
            totals.update(counters)
        return totals


def _counters(arena: Arena) -> Tally[Key]:
    counters: Tally[Key] = Tally()
    for transport, nbytes in arena.feeds.bytes_by_transport().items():
        counters[BYTES, transport, "in"] = nbytes
    counters[BYTES, "tcp", "out"] = arena.marks.counter(BYTES_OUT)
    counters[CHUNKS,] = arena.marks.counter(REFETCHED)
    counters[REPAIRS,] = arena.feeds.repairs
    return counters


def _gauge(name: str, text: str, label: str, counts: Mapping[str, int], values: tuple[str, ...]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, text, labels=[label])
    for value in values:
        gauge.add_metric([value], counts.get(value, 0))
    return gauge
