"""A copy ahead of a drain. Pure.

Where all the nodes that hold an arena are about to be taken away, and replicas or warm copies (`spec.residency`) still
want it, one node with room clones it at once, though no pod there needs it: so that whoever takes the drained node away
does not take the last copy. A node whose pod needs the arena anyway is as good, and no other copies it then. One that
has begun goes on. What came of it is a source like any other.

A pod that goes, or a scale-down, needs none of this: the last source stays on its node without pods (orders.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.place import Place
from flashboot_operator.core.facts import World, domain_of
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.quarantine import quarantined
from flashboot_operator.core.residency import term

Held = Mapping[Place, Mapping[str, ObservedArena]]
"""Rank → node → what it has of the rank's arena."""


def copies_ahead(owner: Owner, world: World, plans: Sequence[ArenaPlan], held: Held) -> dict[str, list[str]]:
    """Arena → the nodes that shall clone it though no pod there needs it. `plans`: of all ranks of the same replicas,
    their sources elected. Ranks of a replica go to one node where it has room for them."""
    found: dict[str, list[str]] = {}
    if not owner.wants_replicas and not term(owner, world).copies:
        return found
    promised: dict[str, int] = {}
    """Node → bytes that this will take there."""
    for plan in plans:
        for domain in _endangered(owner, world, plan):
            node = _taker(owner, world, plan, domain, held=held[plan.place], promised=promised)
            if node is not None:
                found.setdefault(plan.arena, []).append(node)
                promised[node] = promised.get(node, 0) + _size(plan)
    return found


def _endangered(owner: Owner, world: World, plan: ArenaPlan) -> list[str]:
    """The domains whose source must not be lost and is about to be, with all that could take its place."""
    alone = owner.spec.transfer.domain_policy == "RequireSame"  # else another domain's source can take its place
    users = {domain_of(world, pod.node or "") for pod in plan.pods}
    found = []
    for number, domain in enumerate(plan.sources):
        mine = [node for node in plan.sealed if not alone or domain_of(world, node) == domain]
        if (number == 0 or (alone and domain in users)) and _about_to_go(world, plan, mine):
            found.append(domain)
    return found


def _about_to_go(world: World, plan: ArenaPlan, nodes: Iterable[str]) -> bool:
    """Whether none of them stays, and one of those that are drained can still be read from."""
    unread = quarantined(world, plan.arena)
    sound = [node for node in nodes if world.agents[node].fresh and node in world.nodes and node not in unread]
    staying = [node for node in sound if world.nodes[node].ready and not world.nodes[node].cordoned]
    return not staying and any(world.nodes[node].cordoned for node in sound)


def _taker(
    owner: Owner,
    world: World,
    plan: ArenaPlan,
    domain: str,
    *,
    held: Mapping[str, ObservedArena],
    promised: Mapping[str, int],
) -> str | None:
    alone = owner.spec.transfer.domain_policy == "RequireSame"
    able = [
        node
        for node in world.agents
        if node not in plan.sealed and _fits(world, plan, node) and (not alone or domain_of(world, node) == domain)
    ]
    with_pods = {pod.node for pod in plan.pods}
    begun = [node for node in able if node not in with_pods and node in held and held[node].way == "clone"]
    if begun:
        return max(begun, key=lambda node: (held[node].watermark, node))
    if any(node in with_pods for node in able):
        return None
    return min(
        (node for node in able if node not in held and _room(world, node) - promised.get(node, 0) >= _size(plan)),
        key=lambda node: (
            domain_of(world, node) != domain,
            node not in promised,
            crc32(f"{plan.expected}{node}".encode()),
            node,
        ),
        default=None,
    )


def _fits(world: World, plan: ArenaPlan, name: str) -> bool:
    """Whether a pod there would need this very arena, and the node stays."""
    node, like = world.nodes.get(name), world.nodes.get(next(iter(plan.sources.values())).node)
    if node is None or like is None or not world.agents[name].fresh or not node.ready or node.cordoned:
        return False
    return (node.product, node.architecture) == (like.product, like.architecture)


def _room(world: World, node: str) -> int:
    memory = world.agents[node].observed.memory
    return memory.budget_bytes - memory.used_bytes


def _size(plan: ArenaPlan) -> int:
    return max(arena.bytes for arena in plan.sealed.values())
