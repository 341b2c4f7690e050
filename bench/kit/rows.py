"""Rows of a report: a figure, its goal, and whether it was reached. Pure.

A row without a goal is for orientation. A row whose figure could not be measured says why and counts as not reached
when it has a goal; nothing is left out in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["reached", "missed", "unmeasured", ""]


@dataclass(frozen=True)
class Goal:
    """`sense` is how the figure must stand to the bound."""

    sense: Literal[">=", "<="]
    bound: float

    def holds(self, figure: float) -> bool:
        return figure >= self.bound if self.sense == ">=" else figure <= self.bound

    def __str__(self) -> str:
        return f"{self.sense} {self.bound:g}"


def at_least(bound: float) -> Goal:
    return Goal(">=", bound)


def at_most(bound: float) -> Goal:
    return Goal("<=", bound)


@dataclass(frozen=True)
class Row:
    what: str
    figure: float | None
    """None: could not be measured; `note` says why."""
    unit: str
    """`x` for a ratio."""
    goal: Goal | None = None
    note: str = ""
    spread: tuple[float, float] | None = None
    """Smallest and largest of the paired runs."""

    @property
    def verdict(self) -> Verdict:
        if self.goal is None:
            return ""
        if self.figure is None:
            return "unmeasured"
        return "reached" if self.goal.holds(self.figure) else "missed"


def failed(what: str, unit: str, goal: Goal | None, why: object) -> Row:
    """A row for what could not be measured."""
    return Row(what, None, unit, goal, note=f"failed: {why}"[:300])
