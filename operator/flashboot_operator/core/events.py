"""Which transitions are worth an Event, and a name for each that makes a repeated one fall together.

The name is a hash of what happened to whom, so that a second operator, or the same after a restart, makes the same
Event and the API server refuses it as a duplicate. What happened long ago is not told again, and what happens again is
counted in the Event that is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from flashboot_agent.wire.arena import Way
from flashboot_operator.api.status import Condition
from flashboot_operator.core.facts import World
from flashboot_operator.core.note import RECENT, Note
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.progress import trouble_of
from flashboot_operator.core.reasons import EventReason
from flashboot_operator.core.source_events import source_notes

SEALED: Mapping[Way, EventReason] = {"seed": "SeedSealed", "clone": "CloneSealed", "load": "ImageLoaded"}
MISMATCH: Final = "IdentityMismatch"
NUMBER = re.compile(r"(?<![\w.-])\d+(?![\w.-])")
"""A number that stands alone. Messages that differ only in such ones (percent, restarts, seconds) say the same."""


def happened(owner: Owner, world: World, plans: Sequence[ArenaPlan]) -> list[Note]:
    """What was elected, and what nodes did, as far as it can be told now; the recorder leaves out what it has told."""
    notes: list[Note] = []
    for plan in plans:
        notes += source_notes(plan, world)
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
                reason = SEALED[arena.way]
                ms = int(took.total_seconds() * 1000)
                text = f"{node} holds all {arena.bytes} bytes of rank {plan.place}, verified, after {ms} ms"
                notes.append(Note("Normal", reason, "Seal", text, f"{plan.arena}|{node}|{arena.sealed_at}"))
        notes += _mismatches(plan, world)
    return notes + _evicted(owner, world)


def _mismatches(plan: ArenaPlan, world: World) -> list[Note]:
    """Told at once: with `onMismatch: LoadFromCheckpoint` it may have passed before anybody writes a condition."""
    notes = []
    for pod in plan.pods:
        agent = world.agents.get(pod.node or "")
        seen = agent.pod(pod.uid) if agent is not None else None
        rank = seen.rank(plan.place) if seen is not None else None
        if agent is None or rank is None:
            continue
        trouble = trouble_of(f"pod {pod.name}: rank {plan.place} on {pod.node}", rank, agent.arena(plan.arena))
        if trouble is not None and trouble.reason == MISMATCH:
            subject = f"{pod.uid}|{plan.place}"
            notes.append(Note("Warning", MISMATCH, "Attach", trouble.message, subject, str(rank.hello_at)))
    return notes


def transitions(now: Sequence[Condition], before: Sequence[Mapping[str, Any]]) -> list[Note]:
    """What the conditions tell that they did not tell before."""
    was = {c["type"]: c for c in before}
    return [note for condition in now for note in _transition(condition, was.get(condition.type, {}))]


def _evicted(owner: Owner, world: World) -> list[Note]:
    notes = []
    for node, agent in sorted(world.agents.items()):
        for gone in agent.observed.evicted:
            if gone.model_replica_uid == owner.uid and abs(world.now - gone.at) <= RECENT:
                text = f"{node} dropped its copy of rank {gone.place}, {gone.bytes} bytes: {gone.message}"
                notes.append(Note("Warning", "CopyEvicted", "Evict", text, f"{gone.arena}|{node}|{gone.at}"))
    return notes


def _transition(now: Condition, was: Mapping[str, Any]) -> list[Note]:
    begins = now.status == "True" and (was.get("status"), was.get("reason")) != ("True", now.reason)
    if now.type == "Degraded" and begins and now.reason != MISMATCH:
        return [_of(now, "Warning", now.reason)]
    if now.type == "Stalled" and begins and now.reason == "ProgressDeadlineExceeded":
        return [_of(now, "Warning", now.reason)]
    if now.type == "Reconciling" and begins and now.reason == "RollingOut":
        return [_of(now, "Normal", "RolloutStarted")]
    if now.type == "SourceAvailable" and now.reason != was.get("reason"):
        return _no_copies(now)
    if now.type == "Ready" and now.reason == "AllReplicasReady" and was.get("status") != "True":
        return [_of(now, "Normal", "ReplicasReady")]
    return []


def _no_copies(now: Condition) -> list[Note]:
    if now.reason == "CopiesExpired":
        return [_of(now, "Normal", "CopiesExpired")]
    return [_of(now, "Warning", "CopiesLost")] if now.reason == "CopiesLost" else []


def _of(now: Condition, kind: Literal["Normal", "Warning"], reason: str) -> Note:
    subject = f"{reason}|{NUMBER.sub('#', now.message)}"
    return Note(kind, reason, "Reconcile", now.message, subject, now.last_transition_time)
