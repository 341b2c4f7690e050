"""The conditions of a ModelReplica. Pure: the same facts give the same conditions, and only a change of `status` moves
`lastTransitionTime`.

Reasons that docs/reference/conditions.md does not list do not exist: a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flashboot_agent.wire.base import _rfc3339
from flashboot_operator.api.status import Condition, ConditionType
from flashboot_operator.core.election import Source
from flashboot_operator.core.facts import Raw, Trouble
from flashboot_operator.core.progress import ORDER, Line

MAX_MESSAGE = 1024
SHOWN = 4
"""Pods that a message names; more are counted."""


@dataclass(frozen=True)
class Picture:
    """All that the conditions say something about."""

    generation: int
    wanted: int | None
    """None: adopted pods, whatever their number."""
    max_unavailable: int
    existing: int
    ready: int
    updated: int
    lines: Sequence[Line]
    source: Source | None
    source_node: str | None
    seed: str | None
    refused: Trouble | None = None
    """What keeps the Deployment from being applied."""
    deployment: Raw | None = None
    going: bool = False


def short(messages: Sequence[str]) -> str:
    more = f"; and {len(messages) - SHOWN} more" if len(messages) > SHOWN else ""
    return ("; ".join(messages[:SHOWN]) + more)[:MAX_MESSAGE]


def _troubles(picture: Picture) -> list[Trouble]:
    found = [picture.refused] if picture.refused else []
    for condition in ((picture.deployment or {}).get("status") or {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = condition.get("message", "")
            reason = "QuotaExceeded" if "exceeded quota" in message else "PodCreationFailed"
            found.append(
                Trouble(
                    reason,
                    f"pods of Deployment {(picture.deployment or {})['metadata']['name']} are refused: {message}",
                )
            )
    return found + [line.trouble for line in picture.lines if line.trouble is not None]


def compute(picture: Picture, before: Sequence[Mapping[str, Any]], now: datetime) -> list[Condition]:
    """All conditions, sorted by type."""
    old = {c["type"]: c for c in before}
    result: list[Condition] = []

    def say(kind: ConditionType, status: str, reason: str, message: str) -> None:
        same = old.get(kind, {}).get("status") == status
        since = old[kind].get("lastTransitionTime") if same else None
        result.append(
            Condition.model_validate(
                {
                    "type": kind, "status": status, "observed_generation": picture.generation,
                    "last_transition_time": since or _rfc3339(now.replace(microsecond=0)).replace(".000Z", "Z"),
                    "reason": reason, "message": message[:MAX_MESSAGE],
                }
            )
        )  # fmt: skip

    troubles = _troubles(picture)
    if troubles:
        say("Degraded", "True", troubles[0].reason, short([t.message for t in troubles]))
    else:
        say("Degraded", "False", "AsExpected", "nothing is wrong")

    wanted = picture.existing if picture.wanted is None else picture.wanted
    counts = f"{picture.ready} of {wanted} replicas are ready"
    if wanted == 0:
        idle = (
            ("ScaledToZero", "no replicas are wanted")
            if picture.wanted == 0
            else ("NoPods", "no pod carries the label yet")
        )
        say("Available", "True" if picture.wanted == 0 else "False", *idle)
    elif picture.ready >= max(1, wanted - picture.max_unavailable):
        say("Available", "True", "MinimumReplicasReady", counts)
    elif picture.ready:
        say(
            "Available",
            "False",
            "TooFewReplicasReady",
            f"{counts}, {max(1, wanted - picture.max_unavailable)} are needed",
        )
    else:
        say("Available", "False", "NoReplicaReady", counts)

    done = (
        picture.ready == picture.existing == wanted
        and (picture.wanted is None or picture.updated == wanted)
        and not picture.refused
    )
    waiting = [line for line in picture.lines if line.stage != "Ready"]
    if picture.going:
        say("Ready", "False", "Deleting", "the ModelReplica is being deleted")
    elif done and wanted == 0 and picture.wanted is None:
        say("Ready", "False", "NoPods", "no pod carries the label yet")
    elif done:
        say(
            "Ready",
            "True",
            "ScaledToZero" if wanted == 0 else "AllReplicasReady",
            counts if wanted else "no replicas are wanted",
        )
    elif troubles:
        say("Ready", "False", troubles[0].reason, short([f"{counts}", *(t.message for t in troubles)]))
    elif waiting:
        stage = min((line.stage for line in waiting), key=ORDER.index)
        texts = [line.text for line in sorted(waiting, key=lambda x: (ORDER.index(x.stage), x.pod))]
        say(
            "Ready",
            "False",
            {"Unbound": "WaitingForNodes", "Unpublished": "WaitingForVolumes", "Unknown": "AgentSilent"}.get(
                stage, stage
            ),
            short(texts),
        )
    else:
        say(
            "Ready",
            "False",
            "RollingOut",
            f"{counts}; {picture.existing} exist, {picture.updated} of the present template",
        )

    if picture.source is not None:
        say("SourceAvailable", "True", picture.source.reason, f"the arena on {picture.source.node} feeds new replicas")
    elif picture.seed is not None:
        say("SourceAvailable", "False", "Seeding", f"nothing is resident; pod {picture.seed} loads the checkpoint")
    else:
        say(
            "SourceAvailable",
            "False",
            "NothingResident",
            "no node holds a sealed arena, and no pod can load the checkpoint yet",
        )

    progress: Raw = next(
        (c for c in ((picture.deployment or {}).get("status") or {}).get("conditions") or [] if c["type"] == "Progressing"), {}
    )  # fmt: skip
    if picture.refused:
        say("Stalled", "True", picture.refused.reason, picture.refused.message)
    elif progress.get("status") == "False" and not done:
        say("Stalled", "True", "ProgressDeadlineExceeded", progress.get("message", "the roll-out makes no progress"))
    elif not done and not picture.going:
        say("Reconciling", "True", "Progressing", counts)
    return sorted(result, key=lambda c: c.type)


def unknown(generation: int, now: datetime) -> list[Condition]:
    """What is said of an object at first sight."""
    kinds: tuple[ConditionType, ...] = ("Available", "Degraded", "Ready", "SourceAvailable")
    return [
        Condition.model_validate(
            {
                "type": kind, "status": "Unknown", "observed_generation": generation, "reason": "FirstSeen",
                "last_transition_time": _rfc3339(now.replace(microsecond=0)).replace(".000Z", "Z"), "message": "not looked at yet",
            }
        )
        for kind in kinds
    ]  # fmt: skip


def refused(trouble: Trouble, generation: int, before: Sequence[Mapping[str, Any]], now: datetime) -> list[Condition]:
    """What is said of an object whose spec this operator does not understand."""
    picture = Picture(generation, None, 0, 0, 0, 0, (), None, None, None, trouble)
    return compute(picture, before, now)
