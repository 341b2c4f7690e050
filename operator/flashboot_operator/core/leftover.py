"""What is left of a seed that ended half-way: complete arenas of replicas whose other ranks' are nowhere. Pure.

A replica is loaded whole or cloned whole: its ranks measure memory together and must find it alike (design/0013). Such
an arena is of no use, then, and it could stand in the way of the next seed: so no node is told to keep it, and it has
no say in who shares arenas. Within a pod the agent does the same by itself. While an engine has it, its node keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_operator.core.facts import Agent, World
from flashboot_operator.core.plan import ArenaPlan, Owner


def leftovers(owner: Owner, world: World) -> frozenset[tuple[str, str]]:
    """(node, arena) of all of them."""
    sealed: dict[str, list[tuple[Agent, ObservedArena]]] = {}
    for agent in world.agents.values():
        for arena in agent.observed.arenas:
            if arena.model_replica_uid == owner.uid and arena.state == "sealed":
                sealed.setdefault(arena.expected_identity, []).append((agent, arena))
    places = set(owner.all_places)
    return frozenset(
        (agent.node, arena.arena)
        for mine in sealed.values()
        if not places <= {arena.place for _, arena in mine}
        for agent, arena in mine
        if arena.way == "seed" and not _has_engine(agent, arena.arena)
    )


def without_leftovers(owner: Owner, world: World, plans: Iterable[ArenaPlan]) -> list[ArenaPlan]:
    """The plans of a set that is loaded: nodes with a leftover are told nothing of it until they have dropped it."""
    useless = leftovers(owner, world)
    return [
        replace(plan, wanted={node: each for node, each in plan.wanted.items() if (node, plan.arena) not in useless})
        for plan in plans
    ]


def _has_engine(agent: Agent, arena: str) -> bool:
    """Whether an engine made it or has it, or did before it began anew in its pod."""
    return any(
        rank.arena == arena and (rank.attached_at is not None or rank.phase in ("seeding", "attached"))
        for pod in agent.observed.pods
        for rank in pod.ranks
    )
