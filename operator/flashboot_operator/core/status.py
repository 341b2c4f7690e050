"""The status of a ModelReplica as one document, from the plans, the pods and what was said before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from flashboot_operator.api.status import Domain, Identity, LastClone, Status, Weights
from flashboot_operator.core.conditions import Picture, compute, stamp
from flashboot_operator.core.facts import Pod, Trouble, World, domain_of, time_of
from flashboot_operator.core.progress import Line, line_of
from flashboot_operator.core.replica import ArenaPlan, Owner
from flashboot_operator.core.workload import selector_of

SAME_SCALE_UP = timedelta(seconds=30)
"""Pods whose volumes were published within this time of one another belong to one scale-up."""


def lines_of(plans: Sequence[ArenaPlan], world: World) -> list[Line]:
    owner_plan = {pod.uid: plan for plan in plans for pod in plan.pods}
    return [
        line_of(pod, owner_plan.get(pod.uid), world)
        for pod in sorted(world.pods, key=lambda p: p.name)
        if not pod.going
    ]


def compute_status(
    owner: Owner,
    world: World,
    plans: Sequence[ArenaPlan],
    *,
    generation: int,
    before: Mapping[str, Any],
    refused: Trouble | None,
) -> Status:
    lines = lines_of(plans, world)
    present = [p for p in world.pods if not p.going]
    main = main_plan(owner, plans)
    ready = sum(1 for line in lines if line.stage == "Ready")
    updated = [p for p in present if owner.template_hash is None or p.hash == owner.template_hash]
    deployed = (world.deployment or {}).get("status") or {}
    existing = max(len(present), 0 if owner.spec.template is None else deployed.get("replicas") or 0)
    seed = main.seed if main else None
    picture = Picture(
        generation=generation,
        wanted=None if owner.spec.template is None else (1 if owner.spec.replicas is None else owner.spec.replicas),
        max_unavailable=owner.spec.rollout.max_unavailable,
        existing=existing,
        ready=ready,
        updated=len(updated),
        lines=lines,
        source=main.source if main else None,
        seed=f"{seed.name} on {seed.node}" if seed else None,
        refused=refused,
        deployment=world.deployment,
        going=owner.going,
    )
    source_arena = main.sealed[main.source.node] if main and main.source else None
    return Status(
        observed_generation=generation,
        replicas=existing,
        ready_replicas=ready,
        updated_replicas=len(updated),
        selector=selector_of(owner.name),
        weights=Weights(version=0, digest=source_arena.digest) if source_arena else _kept_weights(before),
        identities=_identities(plans),
        domains=_domains(main, world),
        last_clone=last_clone(plans, world, before),
        conditions=compute(picture, before.get("conditions") or [], world.now),
    )


def _kept_weights(before: Mapping[str, Any]) -> Weights | None:
    return Weights.model_validate(before["weights"]) if before.get("weights") else None


def main_plan(owner: Owner, plans: Sequence[ArenaPlan]) -> ArenaPlan | None:
    """The arena that new pods will need: of the present template, and of those the one with most pods."""
    current = [p for p in plans if owner.template_hash is None or p.template_hash == owner.template_hash]
    return next(iter(current or plans), None)


def _identities(plans: Sequence[ArenaPlan]) -> list[Identity]:
    found = []
    for plan in plans[:16]:
        arena = next(iter(plan.sealed.values()), None)
        found.append(
            Identity(
                template_hash=plan.template_hash or "unknown",
                gpu_product=plan.product or "unknown",
                expected_identity=plan.expected,
                identity=arena.identity if arena else None,
                arena_bytes=arena.bytes if arena else None,
            )
        )
    return found


def _domains(plan: ArenaPlan | None, world: World) -> list[Domain]:
    if plan is None:
        return []
    residents: dict[str, int] = {}
    for node in plan.sealed:
        name = domain_of(world, node)
        residents[name] = residents.get(name, 0) + 1
    for pod in plan.pods:
        residents.setdefault(domain_of(world, pod.node or ""), 0)
    home = domain_of(world, plan.source.node) if plan.source else None
    result = []
    for name in sorted(residents, key=lambda n: (n != home, n))[:16]:
        source = plan.source if name == home else None
        result.append(
            Domain(
                name=name,
                resident_replicas=residents[name],
                source=source_name(plan) if source else None,
                source_node=source.node if source else None,
                source_reason=source.reason if source else None,
            )
        )
    return result


def source_name(plan: ArenaPlan) -> str | None:
    """The first pod on the source's node, or the node when no pod uses its arena."""
    if plan.source is None:
        return None
    return min((p.name for p in plan.pods if p.node == plan.source.node), default=plan.source.node)


def last_clone(plans: Sequence[ArenaPlan], world: World, before: Mapping[str, Any]) -> LastClone | None:
    """The last scale-up by cloning, once complete; what was recorded stays until a later one is complete."""
    kept = LastClone.model_validate(before["lastClone"]) if before.get("lastClone") else None
    cloned: list[tuple[datetime, Pod, str]] = []
    for plan in plans:
        for pod in plan.pods:
            agent = world.agents.get(pod.node or "")
            seen = agent.pod(pod.uid) if agent else None
            arena = agent.arena(plan.arena) if agent else None
            if seen is not None and arena is not None and arena.way == "clone":
                cloned.append((seen.published_at, pod, plan.arena))
    cloned.sort(key=lambda c: c[0], reverse=True)
    batch = cloned[:1]
    for entry in cloned[1:]:
        if batch[-1][0] - entry[0] > SAME_SCALE_UP:
            break
        batch.append(entry)
    arenas = [world.agents[pod.node or ""].arena(arena) for _, pod, arena in batch]
    sealed = [a for a in arenas if a is not None and a.sealed_at is not None]
    ready = [pod.ready_at for _, pod, _ in batch if pod.ready_at is not None]
    if not batch or len(sealed) != len(batch) or len(ready) != len(batch):
        return kept
    completed = max(ready)
    if kept is not None and (time_of(kept.completed_at) or completed) >= completed:
        return kept
    started = [a.started_at or a.created_at for a in sealed]
    return LastClone(
        replicas=len(batch),
        path=next((a.transport for a in sealed if a.transport), "unknown"),
        bytes=sealed[0].bytes,
        clone_milliseconds=_ms(max(a.sealed_at for a in sealed if a.sealed_at) - min(started)),
        api_ready_milliseconds=_ms(completed - min(published for published, _, _ in batch)),
        completed_at=stamp(completed),
    )


def _ms(delta: timedelta) -> int:
    return max(0, int(delta.total_seconds() * 1000))
