"""The memory-sampling rule over several pods: what each pod of a group still waits for in the others. Pure.

Before any engine of a replica samples its free memory, the arenas of all ranks of the replica have theirs. An agent
sees the ranks of its own node; of the others the operator tells it, pod by pod, in words that end up in the waiting
engine's log. Ranks that load a checkpoint have no memory before the load and don't count: a replica loads as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flashboot_agent.wire.desired import WantedArena
from flashboot_operator.core.facts import Pod, World
from flashboot_operator.core.plan import ArenaPlan, Owner


def with_memory_elsewhere(owner: Owner, world: World, plans: Sequence[ArenaPlan]) -> list[ArenaPlan]:
    """The plans of a set that is cloned; their nodes told which ranks of their pods' replicas have no memory yet."""
    if owner.pods_per_replica == 1:
        return list(plans)
    late: dict[str, dict[str, list[str]]] = {}
    """Replica → UID of the pod (or what stands for a missing one) → its ranks that wait."""
    for plan in plans:
        there = {pod.replica: pod for pod in plan.pods}
        for name in {pod.replica for each in plans for pod in each.pods}:
            pod = there.get(name)
            if pod is None:
                words = f"rank {plan.place} of replica {name}, which has no pod on a node yet"
                late.setdefault(name, {}).setdefault("", []).append(words)
            elif not _has_memory(world, plan, pod):
                words = f"rank {plan.place} of pod {pod.name} on {pod.node}"
                late.setdefault(name, {}).setdefault(pod.uid, []).append(words)
    return [replace(plan, wanted=_told(plan, late)) for plan in plans]


def _has_memory(world: World, plan: ArenaPlan, pod: Pod) -> bool:
    agent = world.agents.get(pod.node or "")
    if agent is None:
        return False
    arena, seen = agent.arena(plan.arena), agent.pod(pod.uid)
    rank = seen.rank(plan.place) if seen is not None else None
    return (arena is not None and arena.bytes > 0) or (rank is not None and rank.phase == "attached")


def _told(plan: ArenaPlan, late: Mapping[str, Mapping[str, list[str]]]) -> dict[str, WantedArena]:
    found = dict(plan.wanted)
    for pod in plan.pods:
        words = [each for uid, ranks in late.get(pod.replica, {}).items() if uid != pod.uid for each in ranks]
        wanted = found.get(pod.node or "")
        if words and wanted is not None:
            more = {**wanted.elsewhere, pod.uid: words[:8]}
            found[pod.node or ""] = wanted.model_copy(update={"elsewhere": more})
    return found
