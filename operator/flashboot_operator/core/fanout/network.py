"""Rates of flows between ports, max-min fair: no flow can get more without taking it from one that has less.

A flow uses two ports. Only what changed is computed anew: the flows that share ports with a flow that came or went, and
theirs. A flow that is alone at both its ports, as in a chain, costs a comparison.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

Port = Hashable


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way. `remaining` holds at the time `since`."""

    ports: tuple[Port, Port]
    remaining: float = 0.0
    rate: float = 0.0
    since: float = 0.0

    def left(self, now: float) -> float:
        return max(0.0, self.remaining - self.rate * (now - self.since))


class Network:
    def __init__(self) -> None:
        self._capacity: dict[Port, float] = {}
        self._flows: dict[Port, dict[Flow, None]] = {}
        self._dirty: dict[Port, None] = {}

    def port(self, port: Port, capacity: float) -> None:
        """Add a port, or give it another capacity (bytes a second)."""
        self._capacity[port] = capacity
        self._flows.setdefault(port, {})
        self._dirty[port] = None

    def capacity(self, port: Port) -> float:
        return self._capacity[port]

    def start(self, flow: Flow) -> None:
        for port in flow.ports:
            self._flows[port][flow] = None
            self._dirty[port] = None

    def stop(self, flow: Flow) -> None:
        for port in flow.ports:
            del self._flows[port][flow]
            self._dirty[port] = None

    def settle(self, now: float) -> list[Flow]:
        """Give all flows their rates; those whose rate changed, with `remaining` as of now."""
        changed: list[Flow] = []
        seen: set[Flow] = set()
        for port in self._dirty:
            for first in self._flows[port]:
                if first in seen:
                    continue
                a, b = first.ports
                if len(self._flows[a]) == 1 and len(self._flows[b]) == 1:
                    seen.add(first)
                    _set(first, min(self._capacity[a], self._capacity[b]), now, changed)
                else:
                    self._fill(self._reachable(first, seen), now, changed)
        self._dirty.clear()
        return changed

    def _reachable(self, first: Flow, seen: set[Flow]) -> list[Flow]:
        """All flows that share a port, directly or by way of others."""
        found, todo = [first], [first]
        seen.add(first)
        while todo:
            for port in todo.pop().ports:
                for flow in self._flows[port]:
                    if flow not in seen:
                        seen.add(flow)
                        found.append(flow)
                        todo.append(flow)
        return found

    def _fill(self, flows: list[Flow], now: float, changed: list[Flow]) -> None:
        """Progressive filling: the port with the least room per flow fixes the rate of its flows, again and again."""
        room: dict[Port, float] = {}
        count: dict[Port, int] = {}
        for flow in flows:
            for port in flow.ports:
                room[port] = self._capacity[port]
                count[port] = count.get(port, 0) + 1
        open_ = dict.fromkeys(flows)
        while open_:
            rate = min(room[port] / n for port, n in count.items() if n)
            tight = [port for port, n in count.items() if n and room[port] / n <= rate * (1 + 1e-9)]
            for port in tight:
                for flow in self._flows[port]:
                    if flow in open_:
                        del open_[flow]
                        _set(flow, rate, now, changed)
                        for used in flow.ports:
                            room[used] = max(0.0, room[used] - rate)
                            count[used] -= 1


def _set(flow: Flow, rate: float, now: float, changed: list[Flow]) -> None:
    if abs(rate - flow.rate) > 1e-9 * rate or flow.rate == 0.0:
        flow.remaining, flow.since, flow.rate = flow.left(now), now, rate
        changed.append(flow)
