"""A group's engines work together or not at all: when one of them is gone, the others must begin anew with it. Pure.

The engines of a group meet once, when they start; one that ended can't come back into that meeting. So, as soon as all
of them have met, the operator writes down who they are (the annotation `flashboot.io/together` of the group's
StatefulSet: each pod by its UID and how often its container was restarted). When one of these is missing afterwards,
the pods of the others are deleted, and all meet anew. Pods that were made since are not in the note and are left alone,
so that a group is restarted once per loss. No clock is compared, and a restarted operator reads the note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashboot_operator.api.base import GROUP
from flashboot_operator.core.facts import Agent, Pod
from flashboot_operator.core.plan import Owner

ANNOTATION_TOGETHER = f"{GROUP}/together"

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
FORGIVEN_S = 600.0
"""A group that held for this long begins with the shortest pause again."""


@dataclass(frozen=True)
class Loss:
    """A meeting that is broken."""

    why: str
    rest: tuple[Pod, ...]
    """Whom the others have to begin anew with: to be deleted."""


def note_of(pods: Sequence[Pod]) -> str:
    """The pods with their present engines, as the annotation says it."""
    return ",".join(sorted(f"{pod.uid}/{pod.restarts}" for pod in pods))


def all_met(owner: Owner, pods: Sequence[Pod], agents: Mapping[str, Agent]) -> bool:
    """Every engine of the group has met the others. `pods`: of the group, without those that are going.

    SGLang loads weights only after all ranks have met, so an engine that has weights, or loads them, has."""
    return len(pods) == owner.pods_per_replica and all(
        pod.ready or _has_weights(owner, pod, agents.get(pod.node or "")) for pod in pods
    )


def _has_weights(owner: Owner, pod: Pod, agent: Agent | None) -> bool:
    seen = agent.pod(pod.uid) if agent is not None and agent.fresh else None
    ranks = [seen.rank(place) for place in owner.places(pod)] if seen is not None else []
    return bool(ranks) and all(rank is not None and rank.phase in ("seeding", "attached") for rank in ranks)


def loss_of(note: str, pods: Sequence[Pod]) -> Loss | None:
    """`note`: the annotation, empty for none. `pods`: of the group, also those that are going."""
    engines = dict(part.split("/", 1) for part in note.split(",") if "/" in part)
    there = {pod.uid: pod for pod in pods if not pod.going}
    rest = tuple(pod for uid, pod in there.items() if engines.get(uid) == str(pod.restarts))
    if not rest or len(rest) == len(engines):
        return None
    restarted = sorted(pod.name for uid, pod in there.items() if uid in engines and pod not in rest)
    left = len(engines) - len(rest) - len(restarted)
    words = [f"the engine of pod {name} ended" for name in restarted]
    words += [f"{left} of its pods {'is' if left == 1 else 'are'} gone"] if left else []
    return Loss(", ".join(words), tuple(sorted(rest, key=lambda pod: pod.name)))


class Pauses:
    """Between two restarts of one group: 5 s, doubled with each in a row up to 5 min; anew with a new operator."""

    def __init__(self) -> None:
        self._restarts: dict[str, tuple[int, float]] = {}
        """Group → how often in a row, and when last."""

    def over(self, group: str, now: float) -> bool:
        """Whether the group may be restarted now, which then counts. `now`: monotonic seconds."""
        count, last = self._restarts.get(group, (0, now - FORGIVEN_S))
        if now - last >= FORGIVEN_S:
            count = 0
        elif now - last < min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(count - 1, 16)):
            return False
        self._restarts = {key: each for key, each in self._restarts.items() if now - each[1] < FORGIVEN_S}
        self._restarts[group] = (count + 1, now)
        return True
