"""From the facts about one ModelReplica to what each of its nodes shall do: the arenas, their source or seed, the plan.

Everything is computed anew from the world each time. The only memory is, per arena, the name of the present source and
seed, which keeps elections stable, and who was found slow; without it (after a restart) the same facts lead to a sound
choice again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.control import Lane, ObservedArena, Place, WantedArena
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.election import Sealed, Source, elect_source, others_by_rank
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import Agent, Node, Pod, World
from flashboot_operator.core.fanout.lanes import DEFAULT_REQUEST, egress, request_bytes
from flashboot_operator.core.fanout.model import Plan
from flashboot_operator.core.fanout.pace import Slow, judge
from flashboot_operator.core.seeding import at_work, seed_of
from flashboot_operator.core.targets import allowed_of, fan_out, pace_of, peers

Pods = dict[str, list[Pod]]
"""Node → live pods that need the arena."""

PLACE = Place()
"""The only rank of a replica, so far."""


@dataclass(frozen=True)
class Memory:
    """arena → present source node, arena → UID of the present seed pod, arena → who is slow (fanout/pace.py)."""

    sources: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, str] = field(default_factory=dict)
    slow: Mapping[str, Slow] = field(default_factory=dict)


@dataclass(frozen=True)
class ArenaPlan:
    """What was decided about one arena."""

    arena: str
    expected: str
    template_hash: str
    product: str
    pods: tuple[Pod, ...]
    """Live pods that need it, by the time they were bound."""
    sealed: Mapping[str, ObservedArena]
    """Node → arena, for nodes that hold it complete; those that are silent for a moment are included."""
    source: Source | None = None
    seed: Pod | None = None
    lanes: Plan = ()
    """Per lane: child → parent."""
    slow: Slow = field(default_factory=dict)
    """Nodes that hold up others, and are therefore at the tail."""
    wanted: Mapping[str, WantedArena] = field(default_factory=dict)


@dataclass
class Group:
    """Live pods that need the same arena."""

    template_hash: str
    product: str
    pods: list[Pod] = field(default_factory=list)


@dataclass(frozen=True)
class Owner:
    """The ModelReplica itself."""

    namespace: str
    name: str
    uid: str
    spec: Spec
    template_hash: str | None
    """Hash of the present template's engine, None when pods are adopted."""
    going: bool = False

    @property
    def wants_replicas(self) -> bool:
        return not self.going and self.spec.replicas != 0


def plan_replica(owner: Owner, world: World, memory: Memory) -> list[ArenaPlan]:
    """The plans of all arenas of the ModelReplica, those with most pods first."""
    if owner.going:
        return []
    groups: dict[str, Group] = {}
    for pod in sorted((p for p in world.pods if p.live), key=lambda p: (p.bound or p.created, p.uid)):
        node = world.nodes.get(pod.node or "")
        if node is not None:
            groups.setdefault(_expected(owner, pod.hash, node), Group(pod.hash, node.product)).pods.append(pod)
    known = {
        a.expected_identity
        for agent in world.agents.values()
        for a in agent.observed.arenas
        if a.model_replica_uid == owner.uid
    }
    plans = [_plan_arena(owner, world, memory, expected, groups[expected]) for expected in groups]
    podless = [_plan_arena(owner, world, memory, expected, Group("", "")) for expected in sorted(known - groups.keys())]
    plans += _worth_keeping(owner, world, plans, [p for p in podless if p.sealed])
    return sorted(plans, key=lambda p: (-len(p.pods), p.arena))


def _expected(owner: Owner, template_hash: str, node: Node) -> str:
    return expected_identity(
        owner.spec, template_hash=template_hash, gpu_product=node.product, architecture=node.architecture
    )


def _worth_keeping(owner: Owner, world: World, used: list[ArenaPlan], podless: list[ArenaPlan]) -> list[ArenaPlan]:
    """Arenas that no pod uses now but new pods will: those of the present template; when adopting, the newest one."""
    if not owner.wants_replicas:
        return []
    if owner.template_hash is not None:
        hash_ = owner.template_hash
        current = {_expected(owner, hash_, node): node.product for node in world.nodes.values()}
        return [replace(p, template_hash=hash_, product=current[p.expected]) for p in podless if p.expected in current]
    if used or not podless:
        return []
    newest = max(podless, key=lambda p: max(str(a.sealed_at) for a in p.sealed.values()))
    return [newest]


def _plan_arena(owner: Owner, world: World, memory: Memory, expected: str, group: Group) -> ArenaPlan:
    pods = group.pods
    arena = arena_id(owner.uid, expected, PLACE)
    held = {node: a for node, agent in sorted(world.agents.items()) if (a := agent.arena(arena)) is not None}
    sealed = {node: a for node, a in held.items() if a.state == "sealed"}
    by_node: Pods = {}
    for pod in pods:
        by_node.setdefault(pod.node or "", []).append(pod)
    accused = frozenset(
        (child, parent) for child, agent in world.agents.items() for named, parent in agent.accused if named == arena
    )
    candidates = [
        Sealed(
            node=node,
            fresh=world.agents[node].fresh,
            accused=any(parent == node for _, parent in accused),
            cordoned=node in world.nodes and world.nodes[node].cordoned,
            engines=_engines(world.agents[node], by_node.get(node, [])),
            children=len(a.children),
        )
        for node, a in sealed.items()
    ]
    source = elect_source(candidates, memory.sources.get(arena))
    result = ArenaPlan(arena, expected, group.template_hash, group.product, tuple(pods), sealed, source)
    if source is None:
        return _seeded(owner, world, result, by_node, seed_of(world, arena, pods, memory.seeds.get(arena)))
    twins = [c for c in others_by_rank(candidates, source.node) if sealed[c.node].digest == sealed[source.node].digest]
    before = memory.slow.get(arena, {})
    return _cloned(owner, world, result, by_node, held=held, twins=twins, accused=accused, before=before)


def _seeded(owner: Owner, world: World, result: ArenaPlan, by_node: Pods, seed: Pod | None) -> ArenaPlan:
    """Nobody has the arena: one pod loads it, the others wait."""
    wanted = {}
    for node, there in by_node.items():
        if seed is not None and seed.node == node:
            wanted[node] = _want(owner, result, there, "seed", seed_pod=seed.uid)
        else:
            wanted[node] = _want(owner, result, there, "clone")
    return replace(result, seed=seed, wanted=wanted)


def _cloned(
    owner: Owner,
    world: World,
    result: ArenaPlan,
    by_node: Pods,
    *,
    held: Mapping[str, ObservedArena],
    twins: Sequence[Sealed],
    accused: frozenset[tuple[str, str]],
    before: Slow,
) -> ArenaPlan:
    """The source feeds the others. `twins`: the source and all who hold the same bytes, in the order of their rank."""
    source = twins[0].node
    first, transfer = held[source], owner.spec.transfer
    links = {node: agent.observed.link_bytes_per_second for node, agent in world.agents.items()}
    # Only where an engine serves is there a bandwidth to protect.
    capped = {c.node: egress(links[c.node], transfer.source_egress_percent) for c in twins if c.engines}
    caps = {node: cap for node, cap in capped.items() if cap is not None}
    paces = pace_of(world, held)
    slow = judge(paces, before, allowed_of(links, paces, held, caps))
    forest = fan_out(
        world,
        first,
        pods=by_node,
        held=held,
        twins=[c.node for c in twins if c.fresh],
        slow=slow.keys(),
        accused=accused,
        policy=transfer.domain_policy,
        percent=transfer.source_egress_percent if source in caps else None,
    )
    request = request_bytes(links[source], len(forest.lanes))
    wanted = {}
    for node, there in by_node.items():
        seeding = at_work(world, node, there) if node in held and held[node].state == "seeding" else None
        if seeding is not None:
            wanted[node] = _want(owner, result, there, "seed", seed_pod=seeding)
            continue
        lanes = [Lane(parents=parents) for parents in peers(world, forest, node)]
        wanted[node] = _want(
            owner, result, there, "clone", first=first, lanes=lanes, request=request, cap=caps.get(node)
        )
    if owner.wants_replicas:
        there = by_node.get(source, [])
        wanted[source] = _want(owner, result, there, "hold", first=first, cap=caps.get(source))
    edges = tuple(dict(sorted(lane.items())) for lane in forest.parent)
    return replace(result, lanes=edges, slow=slow, wanted=wanted)


def _engines(agent: Agent, there: list[Pod]) -> int:
    return sum(1 for pod in there if (seen := agent.pod(pod.uid)) is not None and seen.phase == "attached")


def _want(
    owner: Owner,
    result: ArenaPlan,
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
            "arena": result.arena,
            "namespace": owner.namespace,
            "model_replica": owner.name,
            "model_replica_uid": owner.uid,
            "expected_identity": result.expected,
            "identity": first.identity if first else None,
            "digest": first.digest if first else None,
            "place": PLACE,
            "role": role,
            "seed_pod": seed_pod,
            "lanes": list(lanes),
            "request_bytes": request,
            "egress_bytes_per_second": cap,
            "pods": sorted(p.uid for p in there)[:256],
        }
    )
