"""The live views (api/live.py), made from what is known and decided when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flashboot_operator.api.live import (
    LastWord,
    Listing,
    Nodes,
    NodeView,
    PodView,
    Progress,
    RankPlan,
    ReplicaView,
    Summary,
    Traffic,
)
from flashboot_operator.core.facts import Agent, Key, Pod, World
from flashboot_operator.core.plan import ArenaPlan, Decision, Owner
from flashboot_operator.core.status import lines_of
from flashboot_operator.kube.client import Object


def listing(
    statuses: Mapping[Key, tuple[Owner, Object]], *, namespace: str | None, after: str | None, limit: int
) -> Listing:
    """In order of namespace and name, those that come after `after`."""
    keys = sorted(key for key in statuses if namespace in (None, key[0]))
    rest = [key for key in keys if after is None or "/".join(key) > after]
    items = [_summary(*statuses[key]) for key in rest[:limit]]
    return Listing(items=items, after="/".join(rest[limit - 1]) if len(rest) > limit else None)


def _summary(owner: Owner, status: Object) -> Summary:
    ready: Object = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), {})
    home: Object = next((d for d in status.get("domains") or [] if d.get("source")), {})
    return Summary(
        namespace=owner.namespace,
        name=owner.name,
        model=owner.spec.model.name,
        revision=owner.spec.model.revision,
        desired=owner.spec.replicas,
        ready=status.get("readyReplicas") or 0,
        source=home.get("source"),
        domain=home.get("name"),
        state="Ready" if ready.get("status") == "True" else ready.get("reason") or "Unknown",
        message=ready.get("message") or "",
        since=ready.get("lastTransitionTime"),
    )


def view(
    decision: Decision, *, agents: Mapping[str, Agent], silent: Mapping[str, float], status: Object, epoch: int
) -> ReplicaView:
    """Times come from the agents and from the API server, as they said them. Agents are as they are now."""
    owner, world, plans = decision.owner, decision.world, decision.plans
    concerned = {p.node for p in world.pods if p.node} | {n for plan in plans for n in (*plan.wanted, *plan.sealed)}
    return ReplicaView(
        namespace=owner.namespace,
        name=owner.name,
        uid=owner.uid,
        epoch=epoch,
        model=owner.spec.model.model_dump(by_alias=True),
        replicas=owner.spec.replicas,
        status=status,
        progress=[
            Progress(
                pod=line.pod,
                stage=line.stage,
                text=line.text,
                trouble=line.trouble.message if line.trouble is not None else None,
            )
            for line in lines_of(plans, world)
        ],
        pods=[_pod(p) for p in world.pods],
        plan=[_plan(plan, agents) for plan in plans],
        nodes={
            node: _node(world, node, silent.get(node), agents.get(node), owner=owner, plans=plans)
            for node in sorted(concerned | agents.keys())
        },
    )


def nodes_view(agents: Mapping[str, Agent], silent: Mapping[str, float], node: str | None) -> Nodes:
    """The last word of every agent (or of one node's), and for how many seconds it has been silent since."""
    names: Iterable[str] = sorted(agents) if node is None else {node} & agents.keys()
    words = [LastWord(node=n, silent_seconds=round(silent.get(n, 0.0), 1), observed=agents[n].observed) for n in names]
    return Nodes(items=words)


def _plan(plan: ArenaPlan, agents: Mapping[str, Agent]) -> RankPlan:
    return RankPlan(
        arena=plan.arena,
        rank=str(plan.place),
        expected_identity=plan.expected,
        source=plan.source.node if plan.source else None,
        source_reason=plan.source.reason if plan.source else None,
        sources={domain: each.node for domain, each in plan.sources.items()},
        seed_pod=plan.seed.name if plan.seed else None,
        parents=dict(plan.lanes[0]) if plan.lanes else {},
        slow=sorted(plan.slow),
        lanes=[_differing(plan.lanes[0], edges) for edges in plan.lanes],
        traffic=_traffic(plan.arena, agents),
    )


def _differing(first: Mapping[str, str], lane: Mapping[str, str]) -> dict[str, str | None]:
    return {c: lane.get(c) for c in sorted({*first, *lane}) if lane.get(c) != first.get(c)}


def _traffic(arena: str, agents: Mapping[str, Agent]) -> Traffic:
    held = {node: a for node, agent in sorted(agents.items()) if (a := agent.arena(arena)) is not None}
    by_transport: dict[str, int] = {}
    for mine in held.values():
        for path in mine.paths:
            by_transport[path.transport] = by_transport.get(path.transport, 0) + path.bytes_in
    return Traffic(
        bytes_by_transport=by_transport,
        bytes_sent={node: a.bytes_out for node, a in held.items() if a.bytes_out},
        refetched_chunks=sum(a.refetched_chunks for a in held.values()),
    )


def _pod(pod: Pod) -> PodView:
    return PodView(
        uid=pod.uid,
        name=pod.name,
        node=pod.node,
        ready=pod.ready,
        terminating=pod.going,
        created_at=pod.created,
        bound_at=pod.bound,
        ready_at=pod.ready_at,
        trouble=pod.trouble.message if pod.trouble else None,
    )


def _node(
    world: World, node: str, silent: float | None, agent: Agent | None, *, owner: Owner, plans: list[ArenaPlan]
) -> NodeView:
    made = NodeView(
        domain=world.nodes[node].domain if node in world.nodes else None,
        agent_silent_seconds=round(silent, 1) if silent is not None else None,
        wanted=[plan.wanted[node] for plan in plans if node in plan.wanted],
    )
    if agent is None:
        return made
    seen, uids = agent.observed, {p.uid for p in world.pods}
    return made.model_copy(
        update={
            "arenas": [a for a in seen.arenas if a.model_replica_uid == owner.uid],
            "pods": [p for p in seen.pods if p.uid in uids],
            **{name: getattr(seen, name) for name in ("instance", "version", "epoch", "revision", "chunk_address")},
            "memory": seen.memory,
        }
    )
