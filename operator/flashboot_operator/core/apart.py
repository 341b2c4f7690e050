"""Domains that load for themselves, since others may not feed them: `transfer.domainPolicy: RequireSame`. Pure.

Without this, replicas in a domain that has no source would wait for ever. So there it begins as it does where nobody
holds the arenas at all: by an image on a disk of the domain, else by one pod that loads the checkpoint while the others
of the domain wait and clone from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from flashboot_operator.core.facts import Pod, World, domain_of
from flashboot_operator.core.orders import seeded
from flashboot_operator.core.plan import ArenaPlan, Loading, Owner
from flashboot_operator.core.seeding import loaders_of, seed_of


def with_loads_apart(
    owner: Owner,
    world: World,
    plans: Sequence[ArenaPlan],
    candidates: Sequence[Pod],
    present: Mapping[str, frozenset[str]],
) -> list[ArenaPlan]:
    """`plans`: of all ranks of the same replicas. `candidates`: pods that may be elected. `present`: see seed_of."""
    found = list(plans)
    if owner.spec.transfer.domain_policy != "RequireSame":
        return found
    for domain, mine in _unfed(world, plans).items():
        near = around(owner, world, mine)
        parts = [replace(plan, pods=tuple(pod for pod in plan.pods if pod in mine)) for plan in plans]
        able = [pod for pod in candidates if pod in mine]
        chosen = seed_of(near, parts, able, present, pods_per_replica=owner.pods_per_replica)
        loaders = loaders_of(near, parts, chosen)
        for number, part in enumerate(parts):
            if loaders is not None:
                made = seeded(owner, world, part, None, loaders[part.arena])
            else:
                made = seeded(owner, world, part, next((pod for pod in part.pods if pod in chosen), None))
            found[number] = _merged(world, found[number], made, domain)
    return found


def around(owner: Owner, world: World, pods: Iterable[Pod]) -> World:
    """The world as far as nodes may feed these pods."""
    if owner.spec.transfer.domain_policy != "RequireSame":
        return world
    domains = {domain_of(world, pod.node or "") for pod in pods}
    return replace(world, agents={n: a for n, a in world.agents.items() if domain_of(world, n) in domains})


def _unfed(world: World, plans: Sequence[ArenaPlan]) -> dict[str, list[Pod]]:
    """Domain → the pods of replicas one of whose ranks nobody there feeds, or loads."""
    lacking: dict[str, str] = {}
    """Replica → the domain."""
    for plan in plans:
        loading = [plan.image_on, plan.seed.node if plan.seed else None]
        served = plan.sources.keys() | {domain_of(world, node) for node in loading if node is not None}
        for pod in plan.pods:
            if (domain := domain_of(world, pod.node or "")) not in served:
                name = pod.replica or pod.uid
                lacking[name] = min(domain, lacking.get(name, domain))
    found: dict[str, list[Pod]] = {}
    for pod in {pod.uid: pod for plan in plans for pod in plan.pods}.values():
        name = pod.replica or pod.uid
        if name in lacking:
            found.setdefault(lacking[name], []).append(pod)
    return found


def _merged(world: World, plan: ArenaPlan, made: ArenaPlan, domain: str) -> ArenaPlan:
    """The whole plan, and what the domain does. A rank that is fed there stays fed, unless its replica is the seed."""
    orders = {
        node: wanted
        for node, wanted in made.wanted.items()
        if wanted.role in ("seed", "load") or domain_of(world, node) not in plan.sources
    }
    apart = {**plan.apart, domain: Loading(made.seed, made.image_on)}
    return replace(
        plan,
        wanted={**plan.wanted, **{node: wanted for node, wanted in orders.items() if node not in plan.sealed}},
        apart=apart if domain not in plan.sources else plan.apart,
    )
