"""What a new operator takes over from the status that the one before wrote. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashboot_operator.core.facts import World
from flashboot_operator.core.learned import remembered
from flashboot_operator.core.plan import Memory, Owner


def taken_over(owner: Owner, world: World, status: Mapping[str, Any]) -> Memory:
    """What was learned, and the sources that the status names, if they still can be ones."""
    sources: dict[str, tuple[str, ...]] = {}
    for domain in status.get("domains") or []:
        agent = world.agents.get(domain.get("sourceNode") or "")
        for arena in agent.observed.arenas if agent else []:
            if arena.model_replica_uid == owner.uid and arena.state == "sealed":
                sources[arena.arena] = (*sources.get(arena.arena, ()), domain["sourceNode"])
    return Memory(sources, learned=remembered(owner, world, status.get("identities") or []))
