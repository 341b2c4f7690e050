"""From the facts about one ModelReplica to what each of its nodes shall do: the arenas, their source or seed, the plan.

Everything is computed anew from the world each time. The only memory is the name of the present source and seed of an
arena, which keeps elections stable; without it (after a restart) the same facts lead to a sound choice again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.control import ObservedArena, Peer, Place, WantedArena
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.election import Sealed, SeedCandidate, Source, elect_seed, elect_source
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import NO_DOMAIN, Agent, Node, Pod, World
from flashboot_operator.core.plan import Child, Facts, plan

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
START_DEADLINE = timedelta(seconds=15)
"""A published pod whose agent has not even allocated by then must not hold a slot."""

MAX_FALLBACKS = 8


@dataclass(frozen=True)
class Memory:
    """arena → present source node, arena → UID of the present seed pod."""

    sources: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, str] = field(default_factory=dict)


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
    edges: Mapping[str, str] = field(default_factory=dict)
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
    source = elect_source(
        (
            Sealed(
                node=node,
                fresh=world.agents[node].fresh,
                accused=any(parent == node for _, parent in accused),
                cordoned=node in world.nodes and world.nodes[node].cordoned,
                engines=_engines(world.agents[node], by_node.get(node, [])),
                children=len(a.children),
            )
            for node, a in sealed.items()
        ),
        memory.sources.get(arena),
    )
    result = ArenaPlan(arena, expected, template_hash, product, tuple(pods), sealed, source)
    if source is None:
        seed = _seed(world, memory, arena, pods)
        wanted = {}
        for node, there in by_node.items():
            mine = seed is not None and seed.node == node
            wanted[node] = _want(
                owner, result, there, "seed" if mine else "clone", seed_pod=seed.uid if seed and mine else None
            )
        return ArenaPlan(arena, expected, template_hash, product, tuple(pods), sealed, None, seed, {}, wanted)

    first = sealed[source.node]
    twins = {node: a for node, a in sealed.items() if a.digest == first.digest and world.agents[node].fresh}
    children = [c for node, there in by_node.items() if (c := _child(world, node, there, held.get(node), first))]
    edges = plan(
        Facts(
            source=source.node,
            roots={node: a.bytes for node, a in twins.items()},
            children=children,
            accused=frozenset(accused),
            domains={node.name: node.domain for node in world.nodes.values()},
            policy=owner.spec.transfer.domain_policy,
        )
    )
    wanted = {}
    for node, there in by_node.items():
        has = held.get(node)
        if has is not None and has.state == "seeding" and (at_work := _seeding(world, node, there)):
            wanted[node] = _want(owner, result, there, "seed", seed_pod=at_work)
            continue
        parents = (
            _parents(world, node, edges[node], twins=twins, source=source.node, spec=owner.spec)
            if node in edges
            else []
        )
        wanted[node] = _want(owner, result, there, "clone", first=first, parents=parents)
    if owner.wants_replicas:
        wanted[source.node] = _want(owner, result, by_node.get(source.node, []), "hold", first=first)
    return ArenaPlan(arena, expected, template_hash, product, tuple(pods), sealed, source, None, edges, wanted)


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


def _child(world: World, node: str, there: list[Pod], mine: ObservedArena | None, first: ObservedArena) -> Child | None:
    """The node as a target that can start now, or None."""
    agent, arena = world.agents.get(node), first.arena
    if agent is None or not agent.fresh or (mine is not None and mine.state in ("sealed", "seeding")):
        return None
    seen = [o for p in there if (o := agent.pod(p.uid)) is not None]
    if mine is None and not seen:
        return None
    arrival = min([o.published_at for o in seen], default=mine.created_at if mine else world.now)
    problem = any(o.problem is not None for o in seen) or (mine is not None and mine.problem is not None)
    since = max(arrival, first.sealed_at or arrival)
    blank = mine is None or mine.bytes == 0  # It has no memory yet, and does not know how much it needs.
    late = blank and world.now - since > START_DEADLINE
    told = agent.put_parents.get(arena)
    if agent.observed.revision >= agent.put_revision and mine is not None and mine.parent is not None:
        told = mine.parent  # The agent works on our last word; what it says is what is.
    return Child(
        node=node,
        arrival=arrival,
        watermark=mine.watermark if mine else 0,
        serving=not blank,
        parent=told,
        stuck=blank and (problem or late),
    )


def _parents(
    world: World, node: str, parent: str, *, twins: Mapping[str, ObservedArena], source: str, spec: Spec
) -> list[Peer]:
    """The parent, then whom to try by oneself when it fails: other sealed peers, the source last."""
    domains = {n.name: n.domain for n in world.nodes.values()}
    others = [n for n in sorted(twins) if n not in (parent, node, source)]
    if spec.transfer.domain_policy == "RequireSame":
        others = [n for n in others if domains.get(n) == domains.get(node)]
    names = [
        parent,
        *others[: MAX_FALLBACKS - 2],
        *([source] if source not in (parent, node) and source in twins else []),
    ]
    return [Peer(node=n, address=world.agents[n].observed.chunk_address) for n in names]


def _want(
    owner: Owner,
    result: ArenaPlan,
    there: list[Pod],
    role: str,
    *,
    first: ObservedArena | None = None,
    parents: list[Peer] | None = None,
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
            "lanes": [{"parents": parents or []}],
            "pods": sorted(p.uid for p in there)[:256],
        }
    )


def domain_of(world: World, node: str) -> str:
    return world.nodes[node].domain if node in world.nodes else NO_DOMAIN
