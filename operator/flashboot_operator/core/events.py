"""Which transitions are worth an Event, and a name for each that makes a repeated one fall together.

The name is a hash of what happened to whom, so that a second operator, or the same after a restart, makes the same
Event and the API server refuses it as a duplicate. What happened long ago is not told again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from flashboot_operator.api.status import Condition, Status
from flashboot_operator.core.facts import World
from flashboot_operator.core.plan import ArenaPlan, Owner

RECENT = timedelta(minutes=10)


@dataclass(frozen=True)
class Note:
    kind: Literal["Normal", "Warning"]
    reason: str
    action: str
    message: str
    subject: str
    """What makes two notes the same."""

    def name(self, owner: Owner) -> str:
        digest = hashlib.sha256(f"{owner.uid}|{self.reason}|{self.subject}".encode()).hexdigest()[:16]
        return f"{owner.name[:200]}.{digest}"


def notes_of(
    owner: Owner, world: World, plans: Sequence[ArenaPlan], status: Status, before: Sequence[dict[str, str]]
) -> list[Note]:
    """All that can be told now; the recorder leaves out what it has told."""
    notes: list[Note] = []
    for plan in plans:
        if plan.seed is not None:
            text = (
                f"pod {plan.seed.name} on {plan.seed.node} loads the checkpoint: no node holds an arena of its identity"
            )
            notes.append(Note("Normal", "SeedElected", "Elect", text, f"{plan.expected}|{plan.seed.uid}"))
        if plan.source is not None:
            text = f"the arena of rank {plan.place} on {plan.source.node} feeds new replicas ({plan.source.reason})"
            sealed_at = plan.sealed[plan.source.node].sealed_at
            notes.append(Note("Normal", "SourceElected", "Elect", text, f"{plan.arena}|{plan.source.node}|{sealed_at}"))
        for node, agent in sorted(world.agents.items()):
            arena = agent.arena(plan.arena)
            if arena is None:
                continue
            since = arena.sealed_at or arena.started_at or arena.created_at
            if abs(world.now - since) > RECENT:
                continue
            if arena.way == "clone" and arena.started_at is not None:
                text = f"{node} clones rank {plan.place} from {arena.parent or 'a resident peer'}"
                notes.append(Note("Normal", "CloneStarted", "Clone", text, f"{plan.arena}|{node}|{arena.created_at}"))
            for accusation in arena.accusations:
                text = f"{node}, rank {plan.place}, left its parent {accusation.node}: {accusation.problem.message}"
                notes.append(
                    Note(
                        "Warning",
                        "ParentReplaced",
                        "Clone",
                        text,
                        f"{plan.arena}|{node}|{accusation.node}|{accusation.at}",
                    )
                )
            if arena.sealed_at is not None:
                took = arena.sealed_at - (arena.started_at or arena.created_at)
                reason = {"seed": "SeedSealed", "clone": "CloneSealed", "load": "ImageLoaded"}[arena.way]
                ms = int(took.total_seconds() * 1000)
                text = f"{node} holds all {arena.bytes} bytes of rank {plan.place}, verified, after {ms} ms"
                notes.append(Note("Normal", reason, "Seal", text, f"{plan.arena}|{node}|{arena.sealed_at}"))
    was = {c["type"]: c for c in before}
    for condition in status.conditions or []:
        notes += _transition(condition, was.get(condition.type, {}))
    return notes


def _transition(now: Condition, was: dict[str, str]) -> list[Note]:
    if (
        now.type == "Degraded"
        and now.status == "True"
        and (was.get("status"), was.get("reason")) != ("True", now.reason)
    ):
        return [Note("Warning", now.reason, "Reconcile", now.message, f"{now.last_transition_time}|{now.reason}")]
    if now.type == "Ready" and now.reason == "AllReplicasReady" and was.get("status") != "True":
        return [Note("Normal", "ReplicasReady", "Reconcile", now.message, now.last_transition_time)]
    return []
