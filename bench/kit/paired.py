"""Paired timing: contestants run in turn (A B C A B C …), so that a slow moment of the machine hits all alike. Pure.

What always holds: the first round is dropped (cold caches, first faults); a ratio is the median of the ratios within
the rounds, never a ratio of times from different moments; a contestant that failed is named and ends nobody's run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.kit.rows import Goal, Row, failed

Sample = dict[str, Any]
"""What one run measured; has at least `seconds`."""
Run = Callable[[], Sample]


class RunFailed(Exception):
    """A contestant could not do its run; says why."""


@dataclass
class Pairs:
    """The samples of all contestants, round by round, the first round dropped."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def seconds(self, name: str) -> float:
        """Median. Raises RunFailed."""
        return self.median(name, "seconds")

    def median(self, name: str, key: str) -> float:
        """Raises RunFailed for a contestant without samples."""
        return float(median(sample[key] for sample in self.of(name)))

    def largest(self, name: str, key: str) -> float:
        return float(max(sample[key] for sample in self.of(name)))

    def speedups(self, name: str, over: str) -> list[float]:
        """How many times faster `name` was than `over`, one figure a round. Raises RunFailed."""
        return [b["seconds"] / a["seconds"] for a, b in zip(self.of(name), self.of(over), strict=True)]

    def best(self, names: list[str]) -> str:
        """The fastest of those that ran. Raises RunFailed when none did."""
        there = [name for name in names if self.samples.get(name)]
        if not there:
            raise RunFailed("; ".join(f"{name}: {self.failures.get(name, 'did not run')}" for name in names))
        return min(there, key=self.seconds)

    def of(self, name: str) -> list[Sample]:
        if not self.samples.get(name):
            raise RunFailed(f"{name}: {self.failures.get(name, 'did not run')}")
        return self.samples[name]

    def ratio(self, what: str, name: str, over: str | list[str], goal: Goal | None = None) -> Row:
        """A row: the median of the paired speed-ups of `name` over another contestant, or over the best of several."""
        try:
            other = over if isinstance(over, str) else self.best(over)
            figures = self.speedups(name, other)
        except RunFailed as error:
            return failed(what, "x", goal, error)
        note = f"{name} {self.seconds(name):.3f} s, {other} {self.seconds(other):.3f} s"
        return Row(what, float(median(figures)), "x", goal, note, (min(figures), max(figures)))


def paired(contestants: Mapping[str, Run], rounds: int, say: Callable[[str], None] = lambda text: None) -> Pairs:
    """Run all in turn, `rounds` times after a first round that does not count.

    A contestant that raises RunFailed is out, with all that it measured: pairs need both halves."""
    pairs = Pairs({name: [] for name in contestants})
    for number in range(rounds + 1):
        for name, run in contestants.items():
            if name in pairs.failures:
                continue
            try:
                sample = run()
            except RunFailed as error:
                pairs.failures[name] = str(error)
                pairs.samples[name] = []
                say(f"{name} failed: {error}")
                continue
            say(f"{'warm-up' if number == 0 else f'round {number}/{rounds}'}: {name} {sample['seconds']:.3f} s")
            if number:
                pairs.samples[name].append(sample)
    return pairs
