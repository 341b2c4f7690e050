"""Sources that say that they are ready and cannot be read: who tries them, and what follows from that.

A node near an elected source reads a chunk of it now and then, as a clone would; at once where a child has complained.
After FAILURES tries in a row that failed, the source is *quarantined*: it feeds others only where nobody else can,
until a try succeeds. The pauses between tries double (the agent's node/probes.py), so a broken source costs little. All
of it follows from what the agents report: an operator that has just started knows no less. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import Probe
from flashboot_agent.wire.observed import ObservedProbe
from flashboot_operator.core.facts import World, domain_of
from flashboot_operator.core.plan import ArenaPlan

FAILURES = 2
"""One may be a lost packet."""
FIRST_AFTER_S = 60
"""A source that nobody complained about is tried first after this long: one that was just sealed works, and its clones
need its bandwidth."""


def words_of(world: World, arena: str) -> dict[str, ObservedProbe]:
    """Node → the worst that nodes which answer said last of reading the arena there."""
    found: dict[str, ObservedProbe] = {}
    for _, agent in sorted(world.agents.items()):
        for probe in agent.observed.probes if agent.fresh else ():
            if probe.arena == arena and (probe.node not in found or probe.failures > found[probe.node].failures):
                found[probe.node] = probe
    return found


def quarantined(world: World, arena: str) -> dict[str, ObservedProbe]:
    """Node → what a node near it found, for those that must not feed others."""
    return {node: probe for node, probe in words_of(world, arena).items() if probe.failures >= FAILURES}


def probes_of(world: World, plans: Sequence[ArenaPlan]) -> dict[str, list[Probe]]:
    """Node → whose arenas it shall try: the sources, who was complained about, and who failed before."""
    found: dict[str, list[Probe]] = {}
    for plan in plans:
        words = words_of(world, plan.arena)
        suspects = {node for node, probe in words.items() if probe.failures}
        accused = {parent for agent in world.agents.values() for arena, parent in agent.accused if arena == plan.arena}
        for node in sorted(plan.sealed.keys() & ({s.node for s in plan.sources.values()} | suspects | accused)):
            prober = _prober(world, plan.arena, node)
            if world.agents[node].fresh and prober is not None:
                peer = Peer(node=node, address=world.agents[node].observed.chunk_address)
                after = 0 if node in suspects | accused else FIRST_AFTER_S
                found.setdefault(prober, []).append(Probe(arena=plan.arena, peer=peer, first_after_seconds=after))
    return found


def _prober(world: World, arena: str, node: str) -> str | None:
    """Another node that answers: who tried it last, else one of its domain; over all arenas a different one each."""

    def known(name: str) -> bool:
        return any((p.arena, p.node) == (arena, node) for p in world.agents[name].observed.probes)

    home = domain_of(world, node)
    others = [name for name, agent in world.agents.items() if name != node and agent.fresh]
    return min(
        others,
        key=lambda name: (
            not known(name),
            domain_of(world, name) != home,
            crc32(f"{arena}{node}{name}".encode()),
            name,
        ),
        default=None,
    )
