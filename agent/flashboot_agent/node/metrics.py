"""Prometheus metrics: what is, read from the state when scraped; what was, counted here."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flashboot_agent.node.clone import CloneDone
from flashboot_agent.node.record import Counter
from flashboot_agent.node.state import NodeState

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

    def cloned(self, done: CloneDone) -> None:
        self._clones.observe(done.seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._past: Tally[tuple[str, Counter]] = Tally()
        """The highest value of each arena's counters: a dropped arena must not make a counter fall."""

    def collect(self) -> Iterator[Metric]:
        arenas = self._node.store.all()
        states = Tally(arena.state for arena in arenas)
        by_state = GaugeMetricFamily("flashboot_arenas", "Arenas on this node", labels=["state"])
        for state in ("allocated", "seeding", "filling", "sealed"):
            by_state.add_metric([state], states[state])
        yield by_state
        phases = Tally(pod.phase for pod in self._node.pods)
        by_phase = GaugeMetricFamily("flashboot_pods", "Pods with a door volume on this node", labels=["phase"])
        for phase in ("published", "connected", "coming", "seeding", "attached"):
            by_phase.add_metric([phase], phases[phase])
        yield by_phase
        for arena in arenas:
            for counter in (Counter.BYTES_IN, Counter.BYTES_OUT, Counter.REFETCHED):
                # With the time of its making, since the same name may come again.
                self._past[f"{arena.name}/{arena.record.created_at}", counter] = arena.counter(counter)
        yield self._total("flashboot_bytes_in", "Bytes received from parents", Counter.BYTES_IN)
        yield self._total("flashboot_bytes_out", "Bytes sent to children", Counter.BYTES_OUT)
        yield self._total("flashboot_refetched_chunks", "Chunks whose digest differed", Counter.REFETCHED)
        stats = self._node.stats
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

    def _total(self, name: str, text: str, counter: Counter) -> CounterMetricFamily:
        total = sum(value for (_, which), value in self._past.items() if which == counter)
        return CounterMetricFamily(name, text, value=total)
