"""The conditions of a ModelReplica. Pure: the same facts give the same conditions, and only a change of `status` moves
`lastTransitionTime`.

Reasons that docs/reference/conditions.md does not list do not exist: a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from flashboot_operator.api.status import Condition, ConditionType
from flashboot_operator.core.election import Source
from flashboot_operator.core.facts import Raw, Trouble
from flashboot_operator.core.progress import ORDER, Line

MAX_MESSAGE = 1024
SHOWN = 4
"""Pods that a message names; more are counted."""

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Picture:
    """All that the conditions say something about."""

    generation: int
    wanted: int | None = None
    """None: adopted pods, whatever their number."""
    max_unavailable: int = 0
    existing: int = 0
    ready: int = 0
    updated: int = 0
    lines: Sequence[Line] = ()
    source: Source | None = None
    seed: str | None = None
    refused: Trouble | None = None
    """What keeps the Deployment from being applied."""
    deployment: Raw | None = None
    going: bool = False

    @property
    def target(self) -> int:
        return self.existing if self.wanted is None else self.wanted

    @property
    def done(self) -> bool:
        current = self.wanted is None or self.updated == self.target
        return self.ready == self.existing == self.target and current and self.refused is None

    @property
    def counts(self) -> str:
        return f"{self.ready} of {self.target} replicas are ready"

    def deployed(self, kind: str) -> Raw:
        """A condition of the Deployment, or nothing."""
        conditions = ((self.deployment or {}).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})


class _Speaker:
    """Collects what is said, with the time since when it is so."""

    def __init__(self, generation: int, before: Sequence[Mapping[str, Any]], now: datetime) -> None:
        self.said: list[Condition] = []
        self._generation = generation
        self._before = {c["type"]: c for c in before}
        self._now = stamp(now)

    def say(self, kind: ConditionType, status: Truth, reason: str, message: str) -> None:
        old = self._before.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        self.said.append(
            Condition(
                type=kind,
                status=status,
                observed_generation=self._generation,
                last_transition_time=since or self._now,
                reason=reason,
                message=message[:MAX_MESSAGE],
            )
        )


def stamp(at: datetime) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def compute(picture: Picture, before: Sequence[Mapping[str, Any]], now: datetime) -> list[Condition]:
    """All conditions, sorted by type."""
    to = _Speaker(picture.generation, before, now)
    troubles = _troubles(picture)
    if troubles:
        to.say("Degraded", "True", troubles[0].reason, short([t.message for t in troubles]))
    else:
        to.say("Degraded", "False", "AsExpected", "nothing is wrong")
    _available(to, picture)
    _ready(to, picture, troubles)
    _source(to, picture)
    _progress(to, picture)
    return sorted(to.said, key=lambda c: c.type)


def unknown(generation: int, now: datetime) -> list[Condition]:
    """What is said of an object at first sight."""
    to = _Speaker(generation, (), now)
    kinds: tuple[ConditionType, ...] = ("Available", "Degraded", "Ready", "SourceAvailable")
    for kind in kinds:
        to.say(kind, "Unknown", "FirstSeen", "not looked at yet")
    return to.said


def refused(trouble: Trouble, generation: int, before: Sequence[Mapping[str, Any]], now: datetime) -> list[Condition]:
    """What is said of an object whose spec this operator does not understand."""
    return compute(Picture(generation, refused=trouble), before, now)


def short(messages: Sequence[str]) -> str:
    more = f"; and {len(messages) - SHOWN} more" if len(messages) > SHOWN else ""
    return ("; ".join(messages[:SHOWN]) + more)[:MAX_MESSAGE]


def _troubles(picture: Picture) -> list[Trouble]:
    found = [picture.refused] if picture.refused else []
    failure = picture.deployed("ReplicaFailure")
    if failure.get("status") == "True":
        message = failure.get("message", "")
        text = f"pods of Deployment {(picture.deployment or {})['metadata']['name']} are refused: {message}"
        if "exceeded quota" in message:
            found.append(Trouble("QuotaExceeded", text))
        else:
            found.append(Trouble("PodCreationFailed", text))
    return found + [line.trouble for line in picture.lines if line.trouble is not None]


def _available(to: _Speaker, picture: Picture) -> None:
    needed = max(1, picture.target - picture.max_unavailable)
    if picture.wanted == 0:
        to.say("Available", "True", "ScaledToZero", "no replicas are wanted")
    elif picture.target == 0:
        to.say("Available", "False", "NoPods", "no pod carries the label yet")
    elif picture.ready >= needed:
        to.say("Available", "True", "MinimumReplicasReady", picture.counts)
    elif picture.ready:
        to.say("Available", "False", "TooFewReplicasReady", f"{picture.counts}, {needed} are needed")
    else:
        to.say("Available", "False", "NoReplicaReady", picture.counts)


def _ready(to: _Speaker, picture: Picture, troubles: Sequence[Trouble]) -> None:
    waiting = sorted((x for x in picture.lines if x.stage != "Ready"), key=lambda x: (ORDER.index(x.stage), x.pod))
    if picture.going:
        to.say("Ready", "False", "Deleting", "the ModelReplica is being deleted")
    elif picture.done and picture.wanted == 0:
        to.say("Ready", "True", "ScaledToZero", "no replicas are wanted")
    elif picture.done and picture.target == 0:
        to.say("Ready", "False", "NoPods", "no pod carries the label yet")
    elif picture.done:
        to.say("Ready", "True", "AllReplicasReady", picture.counts)
    elif troubles:
        to.say("Ready", "False", troubles[0].reason, short([picture.counts, *(t.message for t in troubles)]))
    elif waiting:
        to.say("Ready", "False", waiting[0].stage, short([x.text for x in waiting]))
    else:
        text = f"{picture.counts}; {picture.existing} exist, {picture.updated} of the present template"
        to.say("Ready", "False", "RollingOut", text)


def _source(to: _Speaker, picture: Picture) -> None:
    if picture.source is not None:
        text = f"what {picture.source.node} holds feeds new replicas"
        to.say("SourceAvailable", "True", picture.source.reason, text)
    elif picture.seed is not None:
        text = f"nothing is resident; pod {picture.seed} loads the checkpoint"
        to.say("SourceAvailable", "False", "Seeding", text)
    else:
        text = "nothing is resident for all ranks of a replica, and no pod can load the checkpoint yet"
        to.say("SourceAvailable", "False", "NothingResident", text)


def _progress(to: _Speaker, picture: Picture) -> None:
    progress = picture.deployed("Progressing")
    if picture.refused is not None:
        to.say("Stalled", "True", picture.refused.reason, picture.refused.message)
    elif progress.get("status") == "False" and not picture.done:
        text = progress.get("message", "the roll-out makes no progress")
        to.say("Stalled", "True", "ProgressDeadlineExceeded", text)
    elif not picture.done and not picture.going:
        to.say("Reconciling", "True", "Progressing", picture.counts)
