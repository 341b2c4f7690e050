"""What nodes are told of a ModelReplica whose spec cannot be read: to keep what they have, as it is. Pure.

An operator that has understood the spec before keeps wanting what it wanted. One that has just started knows nothing
else than what the agents hold; without this they would drop what no pod uses, and the next good spec would begin with
the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import Lane, Role, WantedArena
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_operator.core.facts import Agent
from flashboot_operator.core.targets import lanes_of


def as_it_is(uid: str, agents: Mapping[str, Agent]) -> dict[str, list[WantedArena]]:
    """Node → what it shall keep, or go on to fill, of the ModelReplica of this UID."""
    found: dict[str, list[WantedArena]] = {}
    for node, agent in agents.items():
        mine = [_kept(agent, arena, agents) for arena in agent.observed.arenas if arena.model_replica_uid == uid]
        if mine:
            found[node] = mine
    return found


def _kept(agent: Agent, arena: ObservedArena, agents: Mapping[str, Agent]) -> WantedArena:
    role, seed = _role(agent, arena)
    return WantedArena(
        **arena.owner(),
        identity=arena.identity,
        digest=arena.digest,
        layout_digest=arena.layout_digest,
        role=role,
        seed_pod=seed,
        lanes=[_lane(lane.parent, agents) for lane in lanes_of(arena)],
        pods=arena.pods,
        # Whether it is needed nobody can say: what a pod elsewhere needs goes before it, as the last of its kind.
        eviction="last" if arena.state == "sealed" and not arena.pods else "never",
    )


def _role(agent: Agent, arena: ObservedArena) -> tuple[Role, str | None]:
    if arena.state in ("sealed", "updating"):
        return "hold", None
    if arena.state == "seeding":
        ranks = ((pod.uid, rank) for pod in agent.observed.pods for rank in pod.ranks)
        return "seed", next((uid for uid, rank in ranks if (rank.arena, rank.phase) == (arena.arena, "seeding")), None)
    if arena.way == "load":
        return "load", None
    return ("clone" if arena.pods else "copy"), None


def _lane(parent: str | None, agents: Mapping[str, Agent]) -> Lane:
    if parent is None or parent not in agents:
        return Lane()
    return Lane(parents=[Peer(node=parent, address=agents[parent].observed.chunk_address)])
