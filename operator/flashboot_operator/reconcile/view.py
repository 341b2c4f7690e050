"""The live views as plain JSON: what is known and decided about one ModelReplica, and what the agents said last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flashboot_agent.wire.base import rfc3339
from flashboot_operator.agents.fleet import Fleet
from flashboot_operator.core.facts import Agent, Pod, World
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.status import lines_of

Object = dict[str, Any]


def view(owner: Owner, world: World, plans: list[ArenaPlan], *, fleet: Fleet, status: Object, epoch: int) -> Object:
    """Times come from the agents and from the API server, as they said them. Agents are as they are now."""
    agents, silent = fleet.agents(), fleet.last_seen()
    concerned = {p.node for p in world.pods if p.node} | {n for plan in plans for n in (*plan.wanted, *plan.sealed)}
    return {
        "namespace": owner.namespace,
        "name": owner.name,
        "uid": owner.uid,
        "epoch": epoch,
        "model": owner.spec.model.model_dump(by_alias=True),
        "replicas": owner.spec.replicas,
        "status": status,
        "progress": [{"pod": line.pod, "stage": line.stage, "text": line.text} for line in lines_of(plans, world)],
        "pods": [_pod(p) for p in world.pods],
        "plan": [
            {
                "arena": plan.arena,
                "rank": str(plan.place),
                "expectedIdentity": plan.expected,
                "source": plan.source.node if plan.source else None,
                "sourceReason": plan.source.reason if plan.source else None,
                "seedPod": plan.seed.name if plan.seed else None,
                "parents": dict(plan.lanes[0]) if plan.lanes else {},
                "slow": sorted(plan.slow),
                "lanes": [_differing(plan.lanes[0], edges) for edges in plan.lanes],
                "traffic": _traffic(plan.arena, agents),
            }
            for plan in plans
        ],
        "nodes": {
            node: _node(world, node, silent.get(node), agents.get(node), owner=owner, plans=plans)
            for node in sorted(concerned | agents.keys())
        },
    }


def nodes_view(fleet: Fleet) -> list[Object]:
    """The last word of every agent, whole, and for how many seconds it has been silent since."""
    silent = fleet.last_seen()
    return [
        {"node": node, "silentSeconds": round(silent[node], 1), "observed": json.loads(agent.observed.to_json())}
        for node, agent in sorted(fleet.agents().items())
    ]


def _differing(first: Mapping[str, str], lane: Mapping[str, str]) -> Object:
    """A lane's edges that lane 0 does not have too; null for a child that waits in this lane only."""
    return {c: lane.get(c) for c in sorted({*first, *lane}) if lane.get(c) != first.get(c)}


def _traffic(arena: str, agents: Mapping[str, Agent]) -> Object:
    """What the fan-out of the arena has moved so far, as the nodes say."""
    held = {node: a for node, agent in sorted(agents.items()) if (a := agent.arena(arena)) is not None}
    by_transport: dict[str, int] = {}
    for mine in held.values():
        for path in mine.paths:
            by_transport[path.transport] = by_transport.get(path.transport, 0) + path.bytes_in
    return {
        "bytesByTransport": by_transport,
        "bytesSent": {node: a.bytes_out for node, a in held.items() if a.bytes_out},
        "refetchedChunks": sum(a.refetched_chunks for a in held.values()),
    }


def _pod(pod: Pod) -> Object:
    return {
        "uid": pod.uid,
        "name": pod.name,
        "node": pod.node,
        "ready": pod.ready,
        "terminating": pod.going,
        "createdAt": rfc3339(pod.created),
        "boundAt": rfc3339(pod.bound) if pod.bound else None,
        "readyAt": rfc3339(pod.ready_at) if pod.ready_at else None,
        "trouble": pod.trouble.message if pod.trouble else None,
    }


def _node(world: World, node: str, silent: float | None, agent: Any, *, owner: Owner, plans: list[ArenaPlan]) -> Object:
    result: Object = {
        "domain": world.nodes[node].domain if node in world.nodes else None,
        "agentSilentSeconds": round(silent, 1) if silent is not None else None,
        "wanted": [json.loads(plan.wanted[node].to_json()) for plan in plans if node in plan.wanted],
        "arenas": [],
        "pods": [],
    }
    if agent is not None:
        seen = json.loads(agent.observed.to_json())
        result |= {key: seen[key] for key in ("instance", "version", "epoch", "revision", "chunkAddress", "memory")}
        result["arenas"] = [a for a in seen["arenas"] if a["modelReplicaUid"] == owner.uid]
        uids = {p.uid for p in world.pods}
        result["pods"] = [p for p in seen["pods"] if p["uid"] in uids]
    return result
