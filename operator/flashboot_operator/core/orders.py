"""What the nodes are told about one arena: seed it or wait for the seed, clone it and from whom, hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flashboot_agent.wire.desired import Lane, WantedArena
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_operator.core.election import Sealed
from flashboot_operator.core.facts import Pod, World, domain_of
from flashboot_operator.core.fanout.lanes import DEFAULT_REQUEST, egress, request_bytes
from flashboot_operator.core.fanout.pace import Slow, judge
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.seeding import at_work, has_image
from flashboot_operator.core.targets import allowed_of, fan_out, pace_of, peers

Pods = dict[str, list[Pod]]
"""Node → live pods that need the arena."""


def by_node(pods: Sequence[Pod]) -> Pods:
    found: Pods = {}
    for pod in pods:
        found.setdefault(pod.node or "", []).append(pod)
    return found


def seeded(owner: Owner, world: World, plan: ArenaPlan, seed: Pod | None, loader: str | None = None) -> ArenaPlan:
    """Nobody can feed the others: one pod loads it, the others wait. An agent that has an image of it takes that.
    `loader`: a node without a pod that does so for them all, instead of a seed."""
    wanted = {}
    for node, there in by_node(plan.pods).items():
        if seed is not None and seed.node == node:
            wanted[node] = _want(owner, plan, there, "seed", seed_pod=seed.uid)
        else:
            wanted[node] = _want(owner, plan, there, "clone")
    if loader is not None:
        wanted[loader] = _want(owner, plan, [], "load")
    elif seed is not None and has_image(world, seed.node, plan.arena):
        loader = seed.node
    return replace(plan, seed=seed, image_on=loader, wanted=wanted)


def cloned(
    owner: Owner,
    world: World,
    plan: ArenaPlan,
    *,
    held: Mapping[str, ObservedArena],
    twins: Sequence[Sealed],
    accused: frozenset[tuple[str, str]],
    before: Slow,
    ahead: Sequence[str] = (),
) -> ArenaPlan:
    """The sources feed the others. `twins`: the home source and all who hold the same bytes, in the order of their
    rank. `ahead`: nodes that clone it without a pod (ahead.py)."""
    source, pods = twins[0].node, by_node(plan.pods)
    transfer = owner.spec.transfer
    links = {node: agent.observed.link_bytes_per_second for node, agent in world.agents.items()}
    # Only where an engine serves is there a bandwidth to protect.
    capped = {c.node: egress(links[c.node], transfer.source_egress_percent) for c in twins if c.engines}
    caps = {node: cap for node, cap in capped.items() if cap is not None}
    paces = pace_of(world, held)
    slow = judge(paces, before, allowed_of(links, paces, held, caps))
    forest = fan_out(
        world,
        held[source],
        pods={**pods, **{node: [] for node in ahead}},
        held=held,
        twins=[c for c in twins if c.fresh],
        slow=slow.keys(),
        accused=accused,
        policy=transfer.domain_policy,
        percent=transfer.source_egress_percent if caps else None,
    )
    request = request_bytes(links[source], len(forest.lanes))
    wanted = {}
    for node in ahead:
        lanes = [Lane(parents=parents) for parents in peers(world, forest, node)]
        first = _first(owner, world, plan, node)
        wanted[node] = _want(owner, plan, [], "copy", first=first, lanes=lanes, request=request)
    for node, there in pods.items():
        seeding = held[node].state == "seeding" if node in held else False
        if seeding and (seed := at_work(world, node, there, plan.place)) is not None:
            wanted[node] = _want(owner, plan, there, "seed", seed_pod=seed)
            continue
        lanes = [Lane(parents=parents) for parents in peers(world, forest, node)]
        first = _first(owner, world, plan, node)
        wanted[node] = _want(owner, plan, there, "clone", first=first, lanes=lanes, request=request, cap=caps.get(node))
    for node in _held(owner, world, plan, pods, source):
        wanted[node] = _want(owner, plan, pods.get(node, []), "hold", first=plan.sealed[node], cap=caps.get(node))
    if owner.wants_replicas:
        for node in _kept_for_absent_pods(owner, world, plan, [c.node for c in twins if c.node not in wanted]):
            wanted[node] = hold(owner, plan, node)
    edges = tuple(dict(sorted(lane.items())) for lane in forest.parent)
    return replace(plan, lanes=edges, slow=slow, wanted=wanted)


def first_of(owner: Owner, plan: ArenaPlan, domain: str) -> ObservedArena:
    """What is cloned in the domain: what the home source holds, or that of the domain where others may not feed it."""
    source = plan.source
    if owner.spec.transfer.domain_policy == "RequireSame":
        source = plan.sources.get(domain, source)
    assert source is not None, "only of what is cloned"
    return plan.sealed[source.node]


def _first(owner: Owner, world: World, plan: ArenaPlan, node: str) -> ObservedArena:
    return first_of(owner, plan, domain_of(world, node))


def _kept_for_absent_pods(owner: Owner, world: World, plan: ArenaPlan, holders: Sequence[str]) -> Sequence[str]:
    """Holders without a pod that one may come back to: a group that restarts has no pods for a moment, and its arenas
    are complete where they were. No more than pods are missing."""
    if plan.template_hash != owner.template_hash:
        return []
    return sorted(holders)[: max(0, len(world.sets) - len(plan.pods))]


def _held(owner: Owner, world: World, plan: ArenaPlan, pods: Pods, home: str) -> list[str]:
    """The sources whose arenas stay without pods: home, and that of a domain as long as its nodes clone."""
    if not owner.wants_replicas:
        return []
    cloning = {domain_of(world, node) for node in pods if node not in plan.sealed}
    return [each.node for domain, each in plan.sources.items() if each.node == home or domain in cloning]


def hold(owner: Owner, plan: ArenaPlan, node: str) -> WantedArena:
    """A node that holds it keeps it, though no pod there needs it."""
    return _want(owner, plan, [], "hold", first=plan.sealed[node])


def _want(
    owner: Owner,
    plan: ArenaPlan,
    there: list[Pod],
    role: str,
    *,
    first: ObservedArena | None = None,
    lanes: Sequence[Lane] = (Lane(),),
    request: int = DEFAULT_REQUEST,
    cap: int | None = None,
    seed_pod: str | None = None,
) -> WantedArena:
    return WantedArena.model_validate(
        {
            "arena": plan.arena,
            "namespace": owner.namespace,
            "model_replica": owner.name,
            "model_replica_uid": owner.uid,
            "expected_identity": plan.expected,
            "identity": first.identity if first else None,
            "digest": first.digest if first else None,
            "layout_digest": first.layout_digest if first else None,
            "place": plan.place,
            "role": role,
            "seed_pod": seed_pod,
            "lanes": list(lanes),
            "request_bytes": request,
            "egress_bytes_per_second": cap,
            "pods": sorted(p.uid for p in there)[:256],
        }
    )
