"""The conditions of a ModelReplica. Pure: the same facts give the same conditions, and only a change of `status` moves
`lastTransitionTime`.

A message alone has to explain the state to whoever reads it with `kubectl describe`: it names the replica, the node,
the rank, and what to do where it is a person's turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from flashboot_operator.api.base import LABEL_MODEL_REPLICA
from flashboot_operator.api.status import Condition, ConditionType
from flashboot_operator.core.deadline import is_stuck
from flashboot_operator.core.domains import WORDS
from flashboot_operator.core.election import UNSOUND
from flashboot_operator.core.facts import Trouble
from flashboot_operator.core.picture import Picture, troubles_of
from flashboot_operator.core.progress import ORDER
from flashboot_operator.core.reasons import ConditionReason

MAX_MESSAGE = 1024
SHOWN = 4
"""Pods that a message names; more are counted."""

UNSEEN = "the operator has not looked at this object yet; if that lasts, look at the flashboot-operator pod and its log"

Truth = Literal["True", "False", "Unknown"]


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
    troubles = troubles_of(picture)
    stuck = _stuck(to, picture, troubles)
    if troubles:
        to.say("Degraded", "True", troubles[0].reason, short([t.message for t in troubles]))
    elif stuck is not None:
        to.say("Degraded", "False", "AsExpected", "nothing is known to be wrong with pods or nodes; see Stalled")
    else:
        to.say("Degraded", "False", "AsExpected", "nothing is wrong")
    _available(to, picture)
    _ready(to, picture, troubles, stuck)
    _source(to, picture)
    _progress(to, picture, stuck)
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


def _ready(to: _Speaker, picture: Picture, troubles: Sequence[Trouble], stuck: str | None) -> None:
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
    elif stuck is not None:
        to.say("Ready", "False", "ProgressDeadlineExceeded", stuck)
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
        if any(line.trouble is not None and picture.seed.startswith(f"{line.pod} on ") for line in picture.lines):
            text = (
                f"nothing is resident; pod {picture.seed} is to load the checkpoint; Degraded says what is in its way"
            )
        to.say("SourceAvailable", "False", "Seeding", text)
    elif picture.lost is not None:
        to.say("SourceAvailable", "False", picture.lost.reason, picture.lost.message)
    else:
        text = "nothing is resident for all ranks of a replica, and no pod can load the checkpoint yet"
        if picture.earlier:
            text = (
                "nothing is resident of the present template and revision, and no pod can load it yet; what earlier "
                "replicas serve from stays as long as they do"
            )
        to.say("SourceAvailable", "False", "NothingResident", text)


def _no_pods(picture: Picture) -> str:
    return (
        f"no pod carries the label {LABEL_MODEL_REPLICA}: {picture.name} yet; without spec.template FlashBoot serves "
        "the pods of another workload, whose template needs the label"
    )


def _progress(to: _Speaker, picture: Picture, stuck: str | None) -> None:
    if picture.refused is not None:
        to.say("Stalled", "True", picture.refused.reason, picture.refused.message)
        return
    if picture.done or picture.going:
        return
    if stuck is not None:
        to.say("Stalled", "True", "ProgressDeadlineExceeded", stuck)
    elif picture.earlier:
        to.say("Reconciling", "True", "RollingOut", picture.counts)
    else:
        to.say("Reconciling", "True", "Progressing", picture.counts)


def _stuck(to: _Speaker, picture: Picture, troubles: Sequence[Trouble]) -> str | None:
    """Why replicas that should be on their way have not moved for the deadline; None while they have."""
    if picture.refused is not None or picture.done or picture.going:
        return None
    moved, deadline = picture.moved_at, picture.deadline
    if not is_stuck(to.before, picture.generation, moved=moved, now=to.now, deadline=deadline):
        return None
    waited = f"{picture.deadline.total_seconds():.0f} s"
    held_up = [t.message for t in troubles] or [x.text for x in picture.lines if x.stage != "Ready"]
    if not picture.earlier:
        return short([f"no replica became Ready for {waited}: {picture.counts}", *held_up])
    served = picture.ready - picture.updated_ready
    stopped = f"the roll-out has stopped: no replica of the present template became Ready for {waited}"
    kept = f"{served} of the earlier one serve, and no more of them are taken away"
    step = "correct spec.template or spec.model.revision, or put the earlier ones back"
    return short([f"{stopped}; {kept}; {step}", *held_up])
