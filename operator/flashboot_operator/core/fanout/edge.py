"""The state of one edge of a simulated fan-out (simulate.py)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from flashboot_operator.core.fanout.network import Flow


@dataclass(slots=True, eq=False)
class Edge:
    """One lane of one target: how far it is, and from whom it pulls."""

    node: str
    lane: int
    parent: str | None = None
    got: int = 0
    """Whole chunks."""
    asked: int = 0
    answers: deque[float] = field(default_factory=deque)
    """When the parent's answer to each open request begins."""
    part: float = 0.0
    """Bytes of the present chunk that a repair found."""
    flow: Flow | None = None
    version: int = 0
