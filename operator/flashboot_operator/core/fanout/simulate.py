"""An event-driven simulation of a fan-out that asks the real planner: `simulate(scenario)`.

The model: each node has a port in and a port out (and a pair of their own for crossings between domains), shared
max-min fair (network.py). An edge moves one chunk at a time and has up to w requests in flight; a request takes `o`
before its chunk can flow, and is made only for what the parent has announced. What a repair finds of a chunk stays.
The planner is asked when a target gets ready, when a death or a slow node is noticed, and from time to time while
somebody waits for a parent, as the operator is. Not modelled: CPU, digests, several flows of one edge.
"""

from __future__ import annotations

import heapq
import itertools
from functools import partial
from math import ceil
from typing import Any

from flashboot_operator.core.fanout.edge import Edge
from flashboot_operator.core.fanout.lanes import lanes_per_root
from flashboot_operator.core.fanout.model import Facts, Member, Plan
from flashboot_operator.core.fanout.network import Flow, Network
from flashboot_operator.core.fanout.scenario import Outcome, Scenario, Unfinished

SAME = 1 + 1e-12
"""Times this close are one time."""


class Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = s = scenario
        self.now = 0.0
        self.lane_bytes = s.arena_bytes / s.lanes
        self.chunks = max(1, ceil(self.lane_bytes / s.chunk - 1e-9))
        self.sources, self.targets = s.source_names, s.target_names
        self.ready = dict(zip(self.targets, s.ready or (0.0,) * s.targets, strict=True))
        names = [*self.sources, *self.targets]
        self.domains = dict(zip(names, s.domains or ("default",) * len(names), strict=True))
        self.network = Network()
        for name in names:
            cap = s.source_cap if s.source_cap is not None and name in self.sources else s.link
            for port, capacity in (("in", s.link), ("out", cap), ("xin", s.crossing), ("xout", s.crossing)):
                self.network.port((name, port), s.link if capacity is None else capacity)
        self.edges = {t: [Edge(t, lane) for lane in range(s.lanes)] for t in self.targets}
        self.children: list[dict[str, list[Edge]]] = [{n: [] for n in names} for _ in range(s.lanes)]
        self.alive, self.here = set(self.targets), set[str]()
        self.gone, self.slow = set[str](), set[str]()
        self.done: dict[str, float] = {}
        self.sent = dict.fromkeys(names, 0.0)
        self.crossed = 0.0
        self.plans = self.changes = 0
        self.plan: Plan = ()
        self._owner: dict[Flow, Edge] = {}
        self._events: list[tuple[float, int, int, Any]] = []
        self._number = itertools.count()
        self._look_again = False

    # The clock

    def at(self, time: float, call: Any, order: int = 1) -> None:
        heapq.heappush(self._events, (time, order, next(self._number), call))

    def run(self) -> Outcome:
        s = self.scenario
        for target, time in self.ready.items():
            self.at(time, partial(self._arrive, target))
        for kill in s.kills:
            self.at(kill.at, partial(self._die, self.targets[kill.target]))
            self.at(kill.at + kill.detection_s, partial(self._noticed, self.targets[kill.target], self.gone))
        for straggler in s.stragglers:
            name = self.targets[straggler.target]
            self.at(straggler.at, partial(self._slow_down, name, straggler.factor))
            if straggler.detection_s is not None:
                self.at(straggler.at + straggler.detection_s, partial(self._noticed, name, self.slow))
        while self._events and self.done.keys() != self.alive:
            self.now = self._events[0][0]
            while self._events and self._events[0][0] <= self.now * SAME:
                heapq.heappop(self._events)[-1]()
            for flow in self.network.settle(self.now):
                self._finish_later(self._owner[flow])
        if missing := sorted(self.alive - self.done.keys()):
            raise Unfinished(f"at {self.now:.6g} s nothing moves any more, and {', '.join(missing[:5])} lack bytes")
        took = {t: at - self.ready[t] for t, at in self.done.items()}
        return Outcome(dict(self.done), took, self.sent, self.crossed, self.plans, self.changes, self.plan)

    # What happens to nodes

    def _arrive(self, target: str) -> None:
        if target in self.alive:
            self.here.add(target)
            self._replan()

    def _die(self, target: str) -> None:
        self.alive.discard(target)
        self.done.pop(target, None)
        for lane, mine in enumerate(self.edges[target]):
            for edge in (mine, *self.children[lane][target]):
                self._cut(edge)

    def _noticed(self, target: str, kind: set[str]) -> None:
        if target in self.here and (kind is self.gone or target in self.alive):
            kind.add(target)
            self._replan()

    def _slow_down(self, target: str, factor: float) -> None:
        for port in ("in", "out", "xin", "xout"):
            self.network.port((target, port), self.network.capacity((target, port)) * factor)

    # The plan

    def _replan(self) -> None:
        self.plans += 1
        self.plan = self.scenario.planner(self.facts())
        waiting = False
        for target in self.here & self.alive:
            for edge in self.edges[target]:
                parent = self.plan[edge.lane].get(target)
                if edge.got < self.chunks:
                    waiting |= parent is None
                    if parent != edge.parent:
                        self._move(edge, parent)
        if waiting and not self._look_again and (self._events or self._owner):  # Else nothing will ever change.
            self._look_again = True
            s = self.scenario
            self.at(self.now + max(4 * (s.chunk / s.link + s.overhead_s), s.ideal_s / 200), self._again)

    def _again(self) -> None:
        self._look_again = False
        self._replan()

    def facts(self) -> Facts:
        s = self.scenario
        percent = None if s.source_cap is None else max(1, round(100 * s.source_cap / s.link))
        size = ceil(self.lane_bytes)
        return Facts(
            lanes=(size,) * s.lanes,
            sources=tuple(self.sources),
            roots=tuple(self.sources),
            members=tuple(
                Member(
                    node=t,
                    arrival=self.ready[t],
                    watermarks=tuple(min(size, int(e.got * s.chunk)) for e in self.edges[t]),
                    parents=tuple(e.parent for e in self.edges[t]),
                    serving=True,
                    slow=t in self.slow,
                    gone=t in self.gone,
                )
                for t in self.targets
                if t in self.here
            ),
            domains=self.domains,
            lanes_per_root=lanes_per_root(s.lanes, percent),
            serving=frozenset(self.sources if percent is not None else ()),
        )

    # One edge

    def _move(self, edge: Edge, parent: str | None) -> None:
        if edge.parent is not None:
            self.changes += 1
            self.children[edge.lane][edge.parent].remove(edge)
        self._cut(edge)
        edge.parent = parent
        if parent is not None:
            self.children[edge.lane][parent].append(edge)
            self._ask(edge)

    def _cut(self, edge: Edge) -> None:
        """Whatever is in flight on it ends."""
        if edge.flow is not None:
            edge.part = self._size(edge) - edge.flow.left(self.now)
            self.network.stop(edge.flow)
            del self._owner[edge.flow]
            edge.flow = None
        edge.version += 1
        edge.asked = edge.got
        edge.answers.clear()

    def _size(self, edge: Edge) -> float:
        return min(self.scenario.chunk, self.lane_bytes - edge.got * self.scenario.chunk)

    def _ask(self, edge: Edge) -> None:
        """Request what the parent has, as far as the window goes."""
        parent = edge.parent
        if parent is None or edge.node not in self.alive:
            return
        if parent in self.sources:
            has = self.chunks
        elif parent in self.alive:
            has = self.edges[parent][edge.lane].got
        else:
            return
        until, begins = min(has, edge.got + self.scenario.in_flight, self.chunks), self.now + self.scenario.overhead_s
        while edge.asked < until:
            edge.asked += 1
            edge.answers.append(begins)
            if edge.flow is None and len(edge.answers) == 1:
                self.at(begins, partial(self._begin, edge, edge.version))

    def _begin(self, edge: Edge, version: int) -> None:
        """The next chunk flows, if its answer has come."""
        if edge.version != version or edge.flow is not None or not edge.answers:
            return
        if edge.answers[0] > self.now * SAME:
            self.at(edge.answers[0], partial(self._begin, edge, version))
            return
        edge.answers.popleft()
        assert edge.parent is not None
        far = self.domains[edge.parent] != self.domains[edge.node]
        edge.flow = Flow(((edge.parent, "xout" if far else "out"), (edge.node, "xin" if far else "in")))
        edge.flow.remaining, edge.flow.since = self._size(edge) - edge.part, self.now
        self._owner[edge.flow] = edge
        self.network.start(edge.flow)

    def _finish_later(self, edge: Edge) -> None:
        assert edge.flow is not None
        edge.version += 1
        self.at(edge.flow.since + edge.flow.remaining / edge.flow.rate, partial(self._finish, edge, edge.version), 0)

    def _finish(self, edge: Edge, version: int) -> None:
        if edge.version != version or edge.flow is None:
            return
        assert edge.parent is not None
        size = self._size(edge) - edge.part
        self.sent[edge.parent] += size
        if self.domains[edge.parent] != self.domains[edge.node]:
            self.crossed += size
        edge.part = 0.0
        edge.got += 1
        self._ask(edge)
        if edge.answers and edge.answers[0] <= self.now * SAME:
            edge.answers.popleft()  # The same flow goes on: no rate changes.
            edge.flow.remaining, edge.flow.since = self._size(edge), self.now
            self._finish_later(edge)
        else:
            self.network.stop(edge.flow)
            del self._owner[edge.flow]
            edge.flow = None
            self._begin(edge, edge.version)
        for child in self.children[edge.lane][edge.node]:
            self._ask(child)
        if edge.got == self.chunks:
            self._complete(edge)

    def _complete(self, edge: Edge) -> None:
        if all(e.got == self.chunks for e in self.edges[edge.node]):
            self.done[edge.node] = self.now
        if self._look_again:
            self._replan()


def simulate(scenario: Scenario) -> Outcome:
    """Raises Unfinished when the plan leaves somebody without a way to all bytes."""
    return Simulation(scenario).run()
