"""Metrics of the operator (docs/reference/metrics.md): what was is counted here, what is is read when somebody scrapes.

Labels are words of our own code, kinds of resources and status codes; never names of objects. Nodes are the exception:
one series each, for the silence of their agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flashboot_operator.core.calls import Call
from flashboot_operator.core.changes import edge_changes, elections
from flashboot_operator.core.plan import ArenaPlan

PREFIX = "flashboot_operator_"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
GAUGES = {
    "leading": "1 while this process acts.",
    "epoch": "Epoch of the commands to agents.",
    "lease_age_seconds": "Seconds since the Lease was renewed.",
    "watch_age_seconds": "Seconds since the most silent watch said something.",
    "loop_lag_seconds": "How late the event loop woke up, recent worst.",
    "modelreplicas": "ModelReplicas that are known.",
    "queue_length": "ModelReplicas that wait to be looked at.",
    "upkeep_length": "ModelReplicas of which something is to be written to the API server.",
    "plan_arenas": "Arenas that there are plans for.",
    "plan_targets": "Nodes that get an arena from another node.",
    "plan_edges": "Edges of all plans, over all lanes.",
    "plan_slow": "Nodes that are at the tail because they hold up others.",
}
"""What is read when somebody scrapes: name without prefix → help."""


class Metrics:
    """One registry of its own, so that tests may have several operators in a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._edges = self._counter("plan_edges_changed_total", "Edges that plans changed, over all lanes.", "change")
        self._elections = self._counter("elections_total", "Elections that chose somebody else.", "role", "reason")
        self._reconciles = self._counter("reconciles_total", "How often a ModelReplica was looked at.", "outcome")
        self._wait = self._seconds("queue_wait_seconds", "From when a ModelReplica was due until it was looked at.")
        self._work = self._seconds("queue_work_seconds", "Of looking at a ModelReplica and deciding.")
        self._kept = self._counter("upkeeps_total", "How often what was decided was compared and written.", "outcome")
        self._keeping = self._seconds("upkeep_seconds", "Of that, API calls included.")
        self._calls = self._counter("api_calls_total", "Calls to the API server.", "verb", "resource", "code")
        self._api = self._seconds("api_seconds", "Of calls to the API server; of watches until they began.", "verb")
        self._agents = self._counter("agent_calls_total", "Calls to agents.", "call", "outcome")
        self._agent_seconds = self._seconds("agent_seconds", "Of calls to agents, long polls left out.", "call")
        self._status = self._counter("status_writes_total", "Status writes, and those put off.", "outcome")
        self._events = self._counter("events_total", "Events of Kubernetes.", "outcome")
        self._told = self._seconds("told_seconds", "From a bound pod seen until its agent was told.", "stage")

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _seconds(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(PREFIX + name, f"Seconds. {text}", labels, buckets=SECONDS, registry=self.registry)

    def read(self, gauges: Callable[[], Mapping[str, float]], silent: Callable[[], Mapping[str, float]]) -> None:
        """From now on, GAUGES and the silence of each node's agent whenever somebody scrapes."""
        self.registry.register(_Present(gauges, silent))

    # Hooks of the parts

    def planned(self, before: Sequence[ArenaPlan], after: Sequence[ArenaPlan]) -> None:
        was = {plan.arena: plan.lanes for plan in before}
        for plan in after:
            for change, number in edge_changes(was.get(plan.arena, ()), plan.lanes).items():
                self._edges.labels(change).inc(number)
        for (role, reason), number in elections(before, after).items():
            self._elections.labels(role, reason).inc(number)

    def looked(self, wait_s: float, work_s: float, failed: bool) -> None:
        self._reconciles.labels("failed" if failed else "done").inc()
        self._wait.observe(max(0.0, wait_s))
        self._work.observe(work_s)

    def kept(self, wait_s: float, work_s: float, failed: bool) -> None:
        self._kept.labels("failed" if failed else "done").inc()
        self._keeping.observe(work_s)

    def api_call(self, call: Call, code: str, seconds: float) -> None:
        self._calls.labels(call.verb, call.resource, code).inc()
        self._api.labels(call.verb).observe(seconds)

    def agent_call(self, call: str, outcome: str, seconds: float) -> None:
        self._agents.labels(call, outcome).inc()
        if call != "observed":
            self._agent_seconds.labels(call).observe(seconds)

    def status(self, outcome: str) -> None:
        self._status.labels(outcome).inc()

    def event(self, outcome: str) -> None:
        self._events.labels(outcome).inc()

    def told(self, stages: Mapping[str, float]) -> None:
        for stage, seconds in stages.items():
            self._told.labels(stage).observe(max(0.0, seconds))


class _Present(Collector):
    def __init__(self, gauges: Callable[[], Mapping[str, float]], silent: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges
        self._silent = silent

    def collect(self) -> Iterable[Metric]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(PREFIX + name, GAUGES[name], value=value)
        text = "Seconds since the agent of a node last answered."
        family = GaugeMetricFamily(f"{PREFIX}agent_silent_seconds", text, labels=["node"])
        for node, seconds in self._silent().items():
            family.add_metric([node], seconds)
        yield family
