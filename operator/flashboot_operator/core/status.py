"""The status of a ModelReplica as one document, from the plans, the pods and what was said before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from flashboot_agent.core.identity import digest_of
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import StartupTimes
from flashboot_operator.api.status import Identity, LastClone, Status, Weights
from flashboot_operator.core import startup
from flashboot_operator.core.conditions import compute, stamp
from flashboot_operator.core.copies import copies_of, tell
from flashboot_operator.core.deadline import moved_at
from flashboot_operator.core.domains import domains_of
from flashboot_operator.core.facts import Pod, Trouble, World, time_of
from flashboot_operator.core.membership import selector_of
from flashboot_operator.core.picture import Picture
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.progress import Line, line_of
from flashboot_operator.core.replicas import counted, replicas_of, unmade, with_odd_pods

SAME_SCALE_UP = timedelta(seconds=30)
"""Pods whose volumes were published within this time of one another belong to one scale-up."""


def lines_of(plans: Sequence[ArenaPlan], world: World) -> list[Line]:
    of_pod: dict[str, list[ArenaPlan]] = {}
    for plan in plans:
        for pod in plan.pods:
            of_pod.setdefault(pod.uid, []).append(plan)
    return [
        line_of(pod, of_pod.get(pod.uid, []), world)
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
    lines = with_odd_pods(owner, world, lines_of(plans, world))
    replicas = replicas_of(owner, world.pods, lines)
    ranks = main_plans(owner, plans)
    main = ranks[0] if ranks else None
    ready = sum(1 for replica in replicas if replica.ready)
    updated = [replica for replica in replicas if replica.updated]
    existing = counted(owner, world, replicas)
    seed = main.seed if main else None
    digest = _digest(ranks)
    weights = Weights(version=0, digest=digest) if digest else _kept_weights(before)
    copies = copies_of(owner, world, ranks)
    told = tell(owner, world, copies, had=weights is not None)
    picture = Picture(
        generation=generation,
        name=owner.name,
        wanted=None if owner.spec.template is None else (1 if owner.spec.replicas is None else owner.spec.replicas),
        max_unavailable=owner.spec.rollout.max_unavailable,
        existing=existing,
        ready=ready,
        updated=len(updated),
        updated_ready=sum(1 for replica in updated if replica.ready),
        earlier=len(replicas) - len(updated),
        moved_at=moved_at(pod for replica in updated for pod in replica.pods),
        deadline=timedelta(seconds=owner.spec.rollout.progress_deadline_seconds),
        lines=lines,
        source=main.source if main else None,
        seed=f"{seed.name} on {seed.node}" if seed else None,
        image_on=main.image_on if main else None,
        refused=refused,
        deployment=world.deployment,
        strays=(*(stray.trouble for stray in world.strays), *unmade(owner, world)),
        contested=world.contested,
        going=owner.going,
        unused=told.unused,
        lost=told.lost,
    )
    return Status(
        observed_generation=generation,
        replicas=existing,
        ready_replicas=ready,
        updated_replicas=len(updated),
        selector=selector_of(
            owner.name, pods_per_replica=owner.pods_per_replica, lws=any(pod.lws for pod in world.pods)
        ),
        weights=weights,
        identities=_identities(plans),
        domains=domains_of(ranks, world),
        residency=copies,
        last_clone=last_clone(plans, world, before),
        conditions=compute(picture, before.get("conditions") or [], world.now),
    )


def _kept_weights(before: Mapping[str, Any]) -> Weights | None:
    return Weights.model_validate(before["weights"]) if before.get("weights") else None


def main_plans(owner: Owner, plans: Sequence[ArenaPlan]) -> list[ArenaPlan]:
    """The arenas that a new replica will need, one per rank: of the present template, and of those the ones with most
    pods."""
    current = [p for p in plans if owner.template_hash is None or p.template_hash == owner.template_hash]
    first = next(iter(current or plans), None)
    return [p for p in plans if first is not None and p.expected == first.expected]


def _digest(ranks: Sequence[ArenaPlan]) -> str | None:
    """Over the bytes of the sources of all ranks; of a single one it is its arena's."""
    digests = {str(p.place): p.sealed[p.source.node].digest for p in ranks if p.source}
    if len(digests) <= 1:
        return next(iter(digests.values()), None)
    return digest_of(digests)


def _identities(plans: Sequence[ArenaPlan]) -> list[Identity]:
    found = []
    for plan in plans[:16]:
        arena = next(iter(plan.sealed.values()), None)
        found.append(
            Identity(
                template_hash=plan.template_hash or "unknown",
                rank=str(plan.place),
                gpu_product=plan.product or "unknown",
                expected_identity=plan.expected,
                identity=arena.identity if arena else None,
                arena_bytes=arena.bytes if arena else None,
            )
        )
    return found


def last_clone(plans: Sequence[ArenaPlan], world: World, before: Mapping[str, Any]) -> LastClone | None:
    """The last scale-up by cloning, once complete; what was recorded stays until a later one is complete."""
    kept = LastClone.model_validate(before["lastClone"]) if before.get("lastClone") else None
    cloned: list[tuple[datetime, Pod, ObservedArena]] = []
    told: dict[str, StartupTimes | None] = {}
    for plan in plans:
        for pod in plan.pods:
            agent = world.agents.get(pod.node or "")
            seen = agent.pod(pod.uid) if agent else None
            arena = agent.arena(plan.arena) if agent else None
            if seen is not None and arena is not None and arena.way == "clone":
                cloned.append((seen.published_at, pod, arena))
                told[pod.uid] = seen.startup
    cloned.sort(key=lambda c: c[0], reverse=True)
    batch = cloned[:1]
    for entry in cloned[1:]:
        if batch[-1][0] - entry[0] > SAME_SCALE_UP:
            break
        batch.append(entry)
    sealed = [arena for _, _, arena in batch if arena.sealed_at is not None]
    ready = [pod.ready_at for _, pod, _ in batch if pod.ready_at is not None]
    if not batch or len(sealed) != len(batch) or len(ready) != len(batch):
        return kept
    completed = max(ready)
    times = [told[uid] for uid in {pod.uid for _, pod, _ in batch}]
    if kept is not None and stamp(completed) == kept.completed_at:
        return startup.completed(kept, times)
    if kept is not None and (time_of(kept.completed_at) or completed) >= completed:
        return kept
    started = [a.started_at or a.created_at for a in sealed]
    return LastClone(
        replicas=len({pod.replica or pod.uid for _, pod, _ in batch}),
        path=next((a.transport for a in sealed if a.transport), "unknown"),
        bytes=sum(arena.bytes for arena in {arena.arena: arena for arena in sealed}.values()),
        clone_milliseconds=_ms(max(a.sealed_at for a in sealed if a.sealed_at) - min(started)),
        api_ready_milliseconds=_ms(completed - min(published for published, _, _ in batch)),
        engine=startup.slowest(times),
        completed_at=stamp(completed),
    )


def _ms(delta: timedelta) -> int:
    return max(0, int(delta.total_seconds() * 1000))
