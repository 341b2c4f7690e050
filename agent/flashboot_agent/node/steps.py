"""In which order an arena goes through its states (the diagram is in node/arena.py)."""

from __future__ import annotations

from typing import Final

from flashboot_agent.wire.arena import ArenaState

STEPS: Final[dict[ArenaState, frozenset[ArenaState]]] = {
    "allocated": frozenset({"filling", "seeding"}),
    "filling": frozenset({"sealed"}),
    "seeding": frozenset({"sealed"}),
    "sealed": frozenset({"updating"}),
    "updating": frozenset({"sealed"}),
}


def require_step(arena: str, old: ArenaState, new: ArenaState) -> None:
    """Raises ValueError: a wrong order is a fault of ours, never of a peer."""
    if new not in STEPS[old]:
        raise ValueError(f"{arena} can't go from {old} to {new}")
