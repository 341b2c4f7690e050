"""A simulation in which nobody is told who is slow: nodes report as agents do, and pace.py judges as in the operator.

Each target reports its verified bytes every REPORT_S while they move, at a phase of its own. A straggler of the
scenario needs no `detection_s` here.
"""

from __future__ import annotations

from functools import partial

from flashboot_operator.core.fanout.pace import Sample, Slow, judge, keep
from flashboot_operator.core.fanout.scenario import Outcome, Scenario
from flashboot_operator.core.fanout.simulate import Simulation

REPORT_S = 0.25


class Watched(Simulation):
    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.verdicts: list[tuple[float, Slow]] = []
        """When the verdict changed, and to what."""
        self._samples: dict[str, tuple[Sample, ...]] = {}
        self._said: Slow = {}
        for i, target in enumerate(self.targets):
            self.at(self.ready[target] + REPORT_S * (i + 1) / len(self.targets), partial(self._report, target))

    def _report(self, target: str) -> None:
        if target not in self.alive or target in self.done:
            self._samples.pop(target, None)
            return
        edges = [e for e in self.edges[target] if e.got < self.chunks]
        total = sum(e.got for e in self.edges[target])
        sample = Sample(
            self.now,
            int(total * self.scenario.chunk),
            tuple(e.parent for e in self.edges[target]),
            starved=any(e.flow is None and not e.answers for e in edges),
        )
        before = self._samples.get(target, ())
        if not before or before[-1].watermark != sample.watermark:
            self._samples[target] = keep(before, sample)
            self._judge()
        self.at(self.now + REPORT_S, partial(self._report, target))

    def _judge(self) -> None:
        seen = {t: s if self._near(t) else () for t, s in self._samples.items()}
        said = judge(seen, self._said, {t: self._allowed(t) for t in seen})
        if said != self._said:
            self._said = said
            self.verdicts.append((self.now, said))
            self.slow = set(said)
            self._replan()

    def _near(self, target: str) -> bool:
        return all(e.parent is None or self.domains[e.parent] == self.domains[target] for e in self.edges[target])

    def _allowed(self, target: str) -> float:
        parents = {e.parent for e in self.edges[target]}
        s = self.scenario
        caps = [s.source_cap if p in self.sources and s.source_cap is not None else s.link for p in parents]
        return min(s.link, sum(caps))


def watch(scenario: Scenario) -> tuple[Outcome, list[tuple[float, Slow]]]:
    """The outcome, and each change of the verdict with its time. Raises Unfinished as `simulate` does."""
    watched = Watched(scenario)
    return watched.run(), watched.verdicts
