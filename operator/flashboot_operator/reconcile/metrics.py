"""Metrics, read from what the parts count anyway whenever somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class OperatorCollector(Collector):
    """`read()` gives name → (help, value); names that end in `_total` are counters."""

    def __init__(
        self, read: Callable[[], dict[str, tuple[str, float]]], silent: Callable[[], dict[str, float]]
    ) -> None:
        self._read = read
        self._silent = silent

    def collect(self) -> Iterable[Metric]:
        for name, (text, value) in self._read().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"flashboot_operator_{name.removesuffix('_total')}", text, value=value)
        family = GaugeMetricFamily(
            "flashboot_operator_agent_silent_seconds",
            "Seconds since the agent of a node last answered.",
            labels=["node"],
        )
        for node, seconds in self._silent().items():
            family.add_metric([node], seconds)
        yield family


def registry_of(
    read: Callable[[], dict[str, tuple[str, float]]], silent: Callable[[], dict[str, float]]
) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(OperatorCollector(read, silent))
    return registry
