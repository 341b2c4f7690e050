"""The conditions of a ModelReplica. Pure: the same facts give the same conditions, and only a change of `status` moves
`lastTransitionTime`.

A message alone has to explain the state to whoever reads it with `kubectl describe`: it names the replica, the node,
the rank, and what to do where it is a person's turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from flashboot_operator.api.base import LABEL_MODEL_REPLICA
from flashboot_operator.api.status import Condition, ConditionType
from flashboot_operator.core.deadline import is_stuck
from flashboot_operator.core.domains import WORDS
from flashboot_operator.core.election import UNSOUND, Source
from flashboot_operator.core.facts import Raw, Trouble
from flashboot_operator.core.progress import ORDER, Line
from flashboot_operator.core.reasons import ConditionReason, LostReason

QUOTA_STEP = "raise the ResourceQuota or lower spec.replicas"
MAX_MESSAGE = 1024
SHOWN = 4
"""Pods that a message names; more are counted."""

UNSEEN = "the operator has not looked at this object yet; if that lasts, look at the flashboot-operator pod and its log"

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Lost:
    """Why nothing is resident though copies were to be kept."""

    reason: LostReason
    message: str


@dataclass(frozen=True)
class Picture:
    """All that the conditions say something about."""

    generation: int
    name: str = ""
    wanted: int | None = None
    """None: adopted pods, whatever their number."""
    max_unavailable: int = 0
    existing: int = 0
    ready: int = 0
    updated: int = 0
    """Of those that exist, how many are of the present template and revision."""
    updated_ready: int = 0
    earlier: int = 0
    """Replicas of an earlier template or revision."""
    moved_at: datetime | None = None
    """When something became of those last."""
    deadline: timedelta = timedelta(seconds=900)
    lines: Sequence[Line] = ()
    source: Source | None = None
    seed: str | None = None
    image_on: str | None = None
    refused: Trouble | None = None
    """What keeps the Deployment from being applied."""
    deployment: Raw | None = None
    strays: Sequence[Trouble] = ()
    """What is wrong beside what the lines say: with pods that do not count, with pods that do not come."""
    contested: Trouble | None = None
    """Who else changes the number of replicas."""
    going: bool = False
    unused: str = ""
    """What becomes of the weights while nobody wants a replica (copies.py)."""
    lost: Lost | None = None

    @property
    def target(self) -> int:
        return self.existing if self.wanted is None else self.wanted

    @property
    def done(self) -> bool:
        current = self.wanted is None or self.updated == self.target
        return self.ready == self.existing == self.target and current and self.refused is None

    @property
    def zero(self) -> str:
        return "; ".join(["no replicas are wanted", *filter(None, [self.unused])])

    @property
    def counts(self) -> str:
        ready = f"{self.ready} of {self.target} replicas are ready"
        if not self.earlier:
            return ready
        return f"{ready}; roll-out: {self.updated} of {self.existing} are of the present template"

    def deployed(self, kind: str) -> Raw:
        """A condition of the Deployment, or nothing."""
        conditions = ((self.deployment or {}).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})


class _Speaker:
    """Collects what is said, with the time since when it is so."""

    def __init__(self, generation: int, before: Sequence[Mapping[str, Any]], now: datetime) -> None:
        self.said: list[Condition] = []
        self._generation = generation
        self.before = {c["type"]: c for c in before}
        self.now = now

    def say(self, kind: ConditionType, status: Truth, reason: ConditionReason, message: str) -> None:
        old = self.before.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        if kind == "Reconciling" and old.get("observedGeneration") != self._generation:
            since = None  # Another spec is another way to go, with its own deadline.
        self.said.append(
            Condition(
                type=kind,
                status=status,
                observed_generation=self._generation,
                last_transition_time=since or stamp(self.now),
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
    _progress(to, picture, troubles)
    return sorted(to.said, key=lambda c: c.type)


def unknown(generation: int, now: datetime) -> list[Condition]:
    """What is said of an object at first sight."""
    to = _Speaker(generation, (), now)
    kinds: tuple[ConditionType, ...] = ("Available", "Degraded", "Ready", "SourceAvailable")
    for kind in kinds:
        to.say(kind, "Unknown", "FirstSeen", UNSEEN)
    return to.said


def refused(trouble: Trouble, generation: int, before: Sequence[Mapping[str, Any]], now: datetime) -> list[Condition]:
    """What is said of an object that this operator cannot work on. What serves goes on serving, so that what was said
    of it stays."""
    to = _Speaker(generation, before, now)
    to.say("Degraded", "True", trouble.reason, trouble.message)
    to.say("Ready", "False", trouble.reason, trouble.message)
    to.say("Stalled", "True", trouble.reason, trouble.message)
    was = to.before or {c.type: c.model_dump(by_alias=True) for c in unknown(generation, now)}
    kept = [Condition.model_validate(was[kind]) for kind in ("Available", "SourceAvailable") if kind in was]
    return sorted([*to.said, *kept], key=lambda c: c.type)


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
            found.append(Trouble("QuotaExceeded", f"{text}; {QUOTA_STEP}"))
        else:
            found.append(Trouble("PodCreationFailed", f"{text}; correct spec.template, or what refuses its pods"))
    found += [line.trouble for line in picture.lines if line.trouble is not None]
    return [*found, *picture.strays, *([picture.contested] if picture.contested else [])]


def _available(to: _Speaker, picture: Picture) -> None:
    needed = max(1, picture.target - picture.max_unavailable)
    if picture.wanted == 0:
        to.say("Available", "True", "ScaledToZero", picture.zero)
    elif picture.target == 0:
        to.say("Available", "False", "NoPods", _no_pods(picture))
    elif picture.ready >= needed:
        to.say("Available", "True", "MinimumReplicasReady", picture.counts)
    elif picture.ready:
        to.say("Available", "False", "TooFewReplicasReady", f"{picture.counts}; {needed} are needed")
    else:
        to.say("Available", "False", "NoReplicaReady", picture.counts)


def _ready(to: _Speaker, picture: Picture, troubles: Sequence[Trouble]) -> None:
    waiting = sorted((x for x in picture.lines if x.stage != "Ready"), key=lambda x: (ORDER.index(x.stage), x.pod))
    if picture.going:
        to.say("Ready", "False", "Deleting", "the ModelReplica is being deleted; its pods and arenas go with it")
    elif picture.done and picture.wanted == 0:
        to.say("Ready", "True", "ScaledToZero", picture.zero)
    elif picture.done and picture.target == 0:
        to.say("Ready", "False", "NoPods", _no_pods(picture))
    elif picture.done:
        to.say("Ready", "True", "AllReplicasReady", picture.counts)
    elif troubles:
        to.say("Ready", "False", troubles[0].reason, short([picture.counts, *(t.message for t in troubles)]))
    elif waiting:
        counts = [picture.counts] if picture.earlier else []
        to.say("Ready", "False", waiting[0].stage, short([*counts, *(x.text for x in waiting)]))
    elif picture.earlier:
        to.say("Ready", "False", "RollingOut", f"{picture.counts}; the others are being replaced")
    else:
        to.say("Ready", "False", "Progressing", f"{picture.counts}, and {picture.existing} exist")


def _source(to: _Speaker, picture: Picture) -> None:
    if picture.source is not None:
        text = f"what {picture.source.node} holds feeds new replicas"
        if picture.source.reason in UNSOUND:
            text += f", but {WORDS[picture.source.reason]}"
        text = "; ".join([text, *filter(None, [picture.unused])])
        to.say("SourceAvailable", "True", picture.source.reason, text)
    elif picture.image_on is not None:
        text = f"nothing is resident; {picture.image_on} loads it from the image on its disk"
        to.say("SourceAvailable", "False", "LoadingImage", text)
    elif picture.seed is not None:
        text = f"nothing is resident; pod {picture.seed} loads the checkpoint"
        to.say("SourceAvailable", "False", "Seeding", text)
    elif picture.lost is not None:
        to.say("SourceAvailable", "False", picture.lost.reason, picture.lost.message)
    else:
        text = "nothing is resident for all ranks of a replica, and no pod can load the checkpoint yet"
        to.say("SourceAvailable", "False", "NothingResident", text)


def _no_pods(picture: Picture) -> str:
    return (
        f"no pod carries the label {LABEL_MODEL_REPLICA}: {picture.name} yet; without spec.template FlashBoot serves "
        "the pods of another workload, whose template needs the label"
    )


def _progress(to: _Speaker, picture: Picture, troubles: Sequence[Trouble]) -> None:
    if picture.refused is not None:
        to.say("Stalled", "True", picture.refused.reason, picture.refused.message)
        return
    if picture.done or picture.going:
        return
    moved, deadline = picture.moved_at, picture.deadline
    if is_stuck(to.before, picture.generation, moved=moved, now=to.now, deadline=deadline):
        to.say("Stalled", "True", "ProgressDeadlineExceeded", _stuck(picture, troubles))
    elif picture.earlier:
        to.say("Reconciling", "True", "RollingOut", picture.counts)
    else:
        to.say("Reconciling", "True", "Progressing", picture.counts)


def _stuck(picture: Picture, troubles: Sequence[Trouble]) -> str:
    waited = f"{picture.deadline.total_seconds():.0f} s"
    held_up = [t.message for t in troubles] or [x.text for x in picture.lines if x.stage != "Ready"]
    if not picture.earlier:
        return short([f"no replica became Ready for {waited}: {picture.counts}", *held_up])
    served = picture.ready - picture.updated_ready
    stopped = f"the roll-out has stopped: no replica of the present template became Ready for {waited}"
    kept = f"{served} of the earlier one serve, and no more of them are taken away"
    step = "correct spec.template or spec.model.revision, or put the earlier ones back"
    return short([f"{stopped}; {kept}; {step}", *held_up])
