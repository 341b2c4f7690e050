"""From the facts about one ModelReplica to what each of its nodes shall do: the arenas, their source or seed, the plan.

Everything is computed anew from the world each time. The only memory is, per arena, the name of the present source and
seed, which keeps elections stable, and who was found slow; without it (after a restart) the same facts lead to a sound
choice again.

Replicas that are alike (learned.py) need one arena per rank. These are decided together: cloned when each rank's is
complete somewhere, and else seeded, by one replica for all ranks (of each domain, where none may feed another).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.place import Place
from flashboot_operator.core.ahead import copies_ahead
from flashboot_operator.core.apart import around, with_loads_apart
from flashboot_operator.core.election import Sealed, elect_sources, others_by_rank
from flashboot_operator.core.facts import Pod, World
from flashboot_operator.core.learned import Kinds, expected_of, kinds_of, with_refusals
from flashboot_operator.core.leftover import without_leftovers
from flashboot_operator.core.memory_rule import with_memory_elsewhere
from flashboot_operator.core.orders import cloned, first_of, seeded
from flashboot_operator.core.plan import ArenaPlan, Memory, Owner
from flashboot_operator.core.ranks import in_order
from flashboot_operator.core.residency import keep_copies, term
from flashboot_operator.core.seeding import loaders_of, seed_of
from flashboot_operator.core.standing import sealed_nodes

Accused = frozenset[tuple[str, str]]
"""(child, parent) pairs."""


@dataclass
class Group:
    """Live pods of replicas that are alike."""

    template_hash: str
    product: str
    pods: list[Pod] = field(default_factory=list)


def plan_replica(owner: Owner, world: World, memory: Memory, kinds: Kinds | None = None) -> list[ArenaPlan]:
    """The plans of all arenas of the ModelReplica, those with most pods first, by place. `kinds`: of this world."""
    if owner.going:
        return []
    kinds = kinds or kinds_of(owner, world, memory.learned)
    groups: dict[str, Group] = {}
    for pod in sorted((p for p in world.pods if p.live), key=lambda p: (p.bound or p.created, p.uid)):
        node = world.nodes.get(pod.node or "")
        if node is not None:
            group = groups.setdefault(kinds.keys[pod.uid], Group(pod.hash, node.product))
            group.pods.append(pod)
            if pod.hash == owner.template_hash:  # also where pods of an older template use the same arenas
                group.template_hash = pod.hash
    known = {
        a.expected_identity
        for agent in world.agents.values()
        for a in agent.observed.arenas
        if a.model_replica_uid == owner.uid
    }
    used = [_plan_set(owner, world, memory, key, group=groups[key], kinds=kinds) for key in groups]
    podless = [
        _plan_set(owner, world, memory, key, group=Group("", ""), kinds=kinds) for key in sorted(known - groups.keys())
    ]
    whole = [plans for plans in podless if all(p.source for p in plans)]
    kept = _worth_keeping(owner, world, kinds.learned, bool(used), whole)
    sets = [keep_copies(owner, world, plans, memory.wanted) for plans in (*used, *kept)]
    plans = [with_refusals(owner, plan, world, kinds) for plans in sets for plan in plans]
    return sorted(plans, key=lambda p: (-len(p.pods), p.expected, in_order(p.place)))


def _worth_keeping(
    owner: Owner, world: World, learned: Mapping[str, str], used: bool, podless: list[list[ArenaPlan]]
) -> list[list[ArenaPlan]]:
    """Arenas that no pod uses now but new pods will: those of the present template; when adopting, or while a template
    is refused, whose pods can never come, the newest ones."""
    if not owner.wants_replicas and not term(owner, world).copies:
        return []
    if owner.template_hash is not None and not owner.template_refused:
        hash_ = owner.template_hash
        expected = {expected_of(owner, hash_, node): node.product for node in world.nodes.values()}
        current = {learned.get(key, key): product for key, product in expected.items()}
        return [
            [replace(p, template_hash=hash_, product=current[p.expected]) for p in plans]
            for plans in podless
            if plans[0].expected in current
        ]
    if used or not podless:
        return []
    return [max(podless, key=lambda plans: max(str(a.sealed_at) for p in plans for a in p.sealed.values()))]


def _plan_set(
    owner: Owner, world: World, memory: Memory, expected: str, *, group: Group, kinds: Kinds
) -> list[ArenaPlan]:
    """The plans of one arena per rank."""
    held: dict[Place, Mapping[str, ObservedArena]] = {}
    plans = []
    for place in owner.all_places:
        arena = arena_id(owner.uid, expected, place)
        mine = {node: a for node, agent in sorted(world.agents.items()) if (a := agent.arena(arena)) is not None}
        sealed = {node: a for node, a in mine.items() if a.state == "sealed"}
        pods = tuple(pod for pod in group.pods if place in owner.places(pod))
        plans.append(ArenaPlan(arena, place, expected, group.template_hash, group.product, pods, sealed))
        held[place] = mine
    candidates = group.pods
    if kinds.may_be_held(expected, group.product):
        # What is held may be just what an engine is about to ask for. Who never asks must not keep the others waiting.
        candidates = [pod for pod in group.pods if pod.uid in kinds.heard]
    if all(plan.sealed for plan in plans):
        plans = _plan_clones(owner, world, memory, plans, held)
    else:
        plans = _plan_seed(owner, world, memory, plans, candidates)
    return with_loads_apart(owner, world, plans, candidates, memory.seeds)


def _plan_seed(
    owner: Owner, world: World, memory: Memory, plans: Sequence[ArenaPlan], candidates: Sequence[Pod]
) -> list[ArenaPlan]:
    chosen = seed_of(world, plans, candidates, memory.seeds, pods_per_replica=owner.pods_per_replica)
    pods = [pod for plan in plans for pod in plan.pods]
    loaders = loaders_of(around(owner, world, pods), plans, chosen) if pods else None
    if loaders is not None:
        made = [seeded(owner, world, plan, None, loaders[plan.arena]) for plan in plans]
    else:
        made = [seeded(owner, world, plan, next((pod for pod in plan.pods if pod in chosen), None)) for plan in plans]
    return without_leftovers(owner, world, made)


def _plan_clones(
    owner: Owner,
    world: World,
    memory: Memory,
    plans: Sequence[ArenaPlan],
    held: Mapping[Place, Mapping[str, ObservedArena]],
) -> list[ArenaPlan]:
    elected: list[tuple[ArenaPlan, list[Sealed], Accused]] = []
    hints: Sequence[str] = ()
    """Sources of the replica's first rank; the others' are best on the same nodes."""
    for plan in plans:
        elected.append(_elect(owner, world, plan, memory.sources.get(plan.arena, hints)))
        hints = hints or [each.node for each in elected[0][0].sources.values()]
    ahead = copies_ahead(owner, world, [plan for plan, _, _ in elected], held)
    made = [
        cloned(
            owner,
            world,
            plan,
            held=held[plan.place],
            twins=twins,
            accused=accused,
            before=memory.slow.get(plan.arena, {}),
            ahead=ahead.get(plan.arena, ()),
        )
        for plan, twins, accused in elected
    ]
    return with_memory_elsewhere(owner, world, made)


def _elect(
    owner: Owner, world: World, plan: ArenaPlan, present: Sequence[str]
) -> tuple[ArenaPlan, list[Sealed], Accused]:
    """The plan with its sources; the nodes that hold what these do, in the order in which they shall feed others; who
    complained about whom."""
    accused = frozenset(
        (child, parent)
        for child, agent in world.agents.items()
        for arena, parent in agent.accused
        if arena == plan.arena
    )
    candidates = sealed_nodes(world, plan, frozenset(parent for _, parent in accused))
    elected = elect_sources(candidates, present)
    home = next(iter(elected.values()))
    plan = replace(plan, source=home, sources=elected)
    alike = [c for c in candidates if _same(plan.sealed[c.node], first_of(owner, plan, c.domain))]
    nodes = {each.node for each in alike}
    plan = replace(plan, sources={domain: each for domain, each in elected.items() if each.node in nodes})
    return plan, others_by_rank(alike, [each.node for each in plan.sources.values()]), accused


def _same(one: ObservedArena, other: ObservedArena) -> bool:
    """Equal bytes, and equal tensors in them."""
    return (one.digest, one.layout_digest) == (other.digest, other.layout_digest)
