"""Which pod loads the checkpoint when no node holds the arena, from what agents and pods say."""

from __future__ import annotations

from collections.abc import Sequence

from flashboot_operator.core.election import SeedCandidate, elect_seed
from flashboot_operator.core.facts import Pod, World

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


def at_work(world: World, node: str, there: Sequence[Pod]) -> str | None:
    """UID of the pod whose engine fills the node's arena now."""
    agent = world.agents.get(node)
    return next((p.uid for p in there if agent and (o := agent.pod(p.uid)) and o.phase == "seeding"), None)


def seed_of(world: World, arena: str, pods: Sequence[Pod], present: str | None) -> Pod | None:
    """The pod that shall load the checkpoint; None while none can.

    present: UID of the one chosen before; None after a restart, when the agents know whom they were told.
    """
    candidates = []
    told = present
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
