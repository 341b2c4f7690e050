"""What `python -m bench` gives to a benchmark, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kit.rows import Row


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
