"""How each node that holds an arena stands: what speaks for it and against it as a source, from facts to election."""

from __future__ import annotations

from collections.abc import Collection

from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.place import Place
from flashboot_operator.core.election import Sealed
from flashboot_operator.core.facts import Agent, Pod, World, domain_of
from flashboot_operator.core.plan import ArenaPlan
from flashboot_operator.core.quarantine import quarantined


def sealed_nodes(world: World, plan: ArenaPlan, accused: Collection[str]) -> list[Sealed]:
    """All nodes that hold the arena of the plan complete. `accused`: nodes that a child has complained about."""
    bad = quarantined(world, plan.arena)
    return [
        _sealed(world, plan, node, arena, accused=node in accused, unread=node in bad)
        for node, arena in plan.sealed.items()
    ]


def _sealed(world: World, plan: ArenaPlan, name: str, arena: ObservedArena, *, accused: bool, unread: bool) -> Sealed:
    agent, node = world.agents[name], world.nodes.get(name)
    there = [pod for pod in plan.pods if pod.node == name]
    return Sealed(
        node=name,
        domain=domain_of(world, name),
        fresh=agent.fresh,
        quarantined=unread,
        ready=node is None or node.ready,
        accused=accused,
        cordoned=node is not None and node.cordoned,
        leaving=not there and any(pod.going and pod.uid in arena.pods for pod in world.pods),
        engines=_engines(agent, there, plan.place),
        children=len(arena.children),
    )


def _engines(agent: Agent, there: list[Pod], place: Place) -> int:
    ranks = [seen.rank(place) for pod in there if (seen := agent.pod(pod.uid)) is not None]
    return sum(1 for rank in ranks if rank is not None and rank.phase == "attached")
