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
from flashboot_operator.core.election import Sealed, SeedCandidate, Source, elect_seed, elect_source, others_by_rank
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import NO_DOMAIN, Agent, Node, Pod, World
from flashboot_operator.core.fanout.lanes import DEFAULT_REQUEST, egress, request_bytes
from flashboot_operator.core.fanout.model import Plan
from flashboot_operator.core.fanout.pace import Slow, judge
from flashboot_operator.core.targets import fan_out, pace_of, peers

PLACE = Place()
"""The only rank of a replica, so far."""

SEED_FAILURES = frozenset(
    {
        "SeedFailed",
        "CommitRefused",
        "CheckpointMissing",
        "CheckpointMalformed",
        "CheckpointIndexMissingShard",
        "CheckpointTruncated",
        "UnsupportedModel",
        "UnsupportedEngine",
        "InsufficientMemory",
    }
)


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
    template_hash, product, pods = group.template_hash, group.product, group.pods
    arena = arena_id(owner.uid, expected, PLACE)
    held = {node: a for node, agent in sorted(world.agents.items()) if (a := agent.arena(arena)) is not None}
    sealed = {node: a for node, a in held.items() if a.state == "sealed"}
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        by_node.setdefault(pod.node or "", []).append(pod)
    accused = {
        (child, parent) for child, agent in world.agents.items() for named, parent in agent.accused if named == arena
    }
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
    result = ArenaPlan(arena, expected, template_hash, product, tuple(pods), sealed, source)
    if source is None:
        seed = _seed(world, memory, arena, pods)
        wanted = {}
        for node, there in by_node.items():
            mine = seed is not None and seed.node == node
            wanted[node] = _want(
                owner, result, there, "seed" if mine else "clone", seed_pod=seed.uid if seed and mine else None
            )
        return ArenaPlan(arena, expected, template_hash, product, tuple(pods), sealed, None, seed, (), {}, wanted)

    first = sealed[source.node]
    twins = [
        c.node for c in others_by_rank(candidates, source.node) if c.fresh and sealed[c.node].digest == first.digest
    ]
    link = world.agents[source.node].observed.link_bytes_per_second
    serving = {c.node for c in candidates if c.engines}
    percent = owner.spec.transfer.source_egress_percent
    slow = judge(pace_of(world, held), memory.slow.get(arena, {}))
    forest = fan_out(
        world,
        first,
        pods=by_node,
        held=held,
        twins=twins,
        slow=slow.keys(),
        accused=frozenset(accused),
        policy=owner.spec.transfer.domain_policy,
        percent=percent if link is not None and source.node in serving else None,
    )
    wanted = {}
    for node, there in by_node.items():
        has = held.get(node)
        if has is not None and has.state == "seeding" and (at_work := _seeding(world, node, there)):
            wanted[node] = _want(owner, result, there, "seed", seed_pod=at_work)
            continue
        wanted[node] = _want(
            owner,
            result,
            there,
            "clone",
            first=first,
            lanes=[Lane(parents=parents) for parents in peers(world, forest, node)],
            request=request_bytes(link, len(forest.lanes)),
            egress=egress(world.agents[node].observed.link_bytes_per_second, percent) if node in serving else None,
        )
    if owner.wants_replicas:
        told = wanted.get(source.node)
        wanted[source.node] = _want(
            owner,
            result,
            by_node.get(source.node, []),
            "hold",
            first=first,
            egress=told.egress_bytes_per_second if told else None,
        )
    edges = tuple(dict(sorted(lane.items())) for lane in forest.parent)
    return ArenaPlan(arena, expected, template_hash, product, tuple(pods), sealed, source, None, edges, slow, wanted)


def _engines(agent: Agent, there: list[Pod]) -> int:
    return sum(1 for pod in there if (seen := agent.pod(pod.uid)) is not None and seen.phase == "attached")


def _seeding(world: World, node: str, there: list[Pod]) -> str | None:
    agent = world.agents.get(node)
    return next((p.uid for p in there if agent and (o := agent.pod(p.uid)) and o.phase == "seeding"), None)


def _seed(world: World, memory: Memory, arena: str, pods: list[Pod]) -> Pod | None:
    """The pod that shall load the checkpoint; None while none can, or while a silent node may still hold the arena."""
    candidates = []
    told: str | None = memory.seeds.get(arena)
    for pod in pods:
        agent = world.agents.get(pod.node or "")
        seen = agent.pod(pod.uid) if agent is not None else None
        if agent is None or seen is None:
            continue
        if told is None and agent.put_seeds.get(arena) == pod.uid:
            told = pod.uid
        failed = seen.problem is not None and seen.problem.reason in SEED_FAILURES
        candidates.append(SeedCandidate(pod.uid, pod.bound or pod.created, seen.phase == "seeding", failed))
    chosen = elect_seed(candidates, told)
    return next((p for p in pods if p.uid == chosen), None)


def _want(
    owner: Owner,
    result: ArenaPlan,
    there: list[Pod],
    role: str,
    *,
    first: ObservedArena | None = None,
    lanes: Sequence[Lane] = (Lane(),),
    request: int = DEFAULT_REQUEST,
    egress: int | None = None,
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
            "egress_bytes_per_second": egress,
            "pods": sorted(p.uid for p in there)[:256],
        }
    )


def domain_of(world: World, node: str) -> str:
    return world.nodes[node].domain if node in world.nodes else NO_DOMAIN
