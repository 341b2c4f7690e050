"""When replicas that are on their way count as stuck. Pure, and nothing is remembered that the conditions do not hold.

The clock starts with a new spec and anew whenever a pod of the present template is made or becomes Ready, whatever the
workload is. A deadline that has passed stops nothing that was not stopped already: Deployments and groups alike take an
earlier replica away only for a new one that is Ready, or within `rollout.maxUnavailable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from flashboot_operator.core.facts import Pod, time_of

REASON = "ProgressDeadlineExceeded"

Before = Mapping[str, Mapping[str, Any]]
"""Type → condition, as they were."""


def moved_at(pods: Iterable[Pod]) -> datetime | None:
    """When something became of the pods last."""
    return max((at for pod in pods for at in (pod.created, pod.ready_at) if at is not None), default=None)


def is_stuck(before: Before, generation: int, *, moved: datetime | None, now: datetime, deadline: timedelta) -> bool:
    """Whether nothing has moved for the deadline, of replicas that are not all there."""
    stalled = _of(before, "Stalled", generation)
    if stalled.get("reason") == REASON:
        since = time_of(stalled["lastTransitionTime"])
        return moved is None or since is None or moved <= since
    began = time_of(_of(before, "Reconciling", generation).get("lastTransitionTime"))
    if began is None:
        return False  # It is on its way from now on.
    return now - max(began, moved or began) > deadline


def _of(before: Before, kind: str, generation: int) -> Mapping[str, Any]:
    condition = before.get(kind, {})
    return condition if condition.get("observedGeneration") == generation else {}
