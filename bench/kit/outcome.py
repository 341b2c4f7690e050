"""What `python -m bench` gives to a benchmark, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kit.paired import RunFailed
from bench.kit.rows import Row, at_least, failed
from bench.kit.say import say


@dataclass(frozen=True)
class Options:
    quick: bool
    """A short run that shows that everything works; its figures are no results."""
    logs: Path
    """Folder for what workers say."""

    @property
    def rounds(self) -> int:
        """Paired rounds after the one that is dropped."""
        return 1 if self.quick else 7


@dataclass
class Outcome:
    rows: list[Row] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    """Raw samples, for the JSON."""

    def part(self, what: str, measure: Callable[[], None]) -> None:
        """Measure one part. One that fails becomes a row that says so and counts as not measured; the next one runs."""
        say(what)
        try:
            measure()
        except (RunFailed, AssertionError, OSError, RuntimeError) as error:  # nodes of tests raise AssertionError
            why = f"{type(error).__name__}: {error}"
            say(f"{what} failed: {why}")
            self.rows.append(failed(what, "x", at_least(0), why))
