"""Whose a pod is, when two ModelReplicas lay claim to it. Pure.

A pod is of the ModelReplica that its label names, unless something that cannot be changed any more says otherwise:

    FlashBoot's volume names another ModelReplica        the label was changed, or was wrong from the start
    the ModelReplica makes its pods itself (it has a     a workload of somebody else makes pods with its label
    template), and another controller made this one

Such a pod counts for nobody: it gets no arena, is in no number, and both ModelReplicas say so until it is put right.
"""

from __future__ import annotations

from collections.abc import Iterable

from flashboot_operator.api.base import LABEL_MODEL_REPLICA
from flashboot_operator.core.facts import Pod, Trouble


def divide(name: str, pods: Iterable[Pod], *, adopts: bool) -> tuple[tuple[Pod, ...], tuple[Trouble, ...]]:
    """The pods that count for the ModelReplica, and what is wrong with the others. adopts: it has no template."""
    mine, strays = [], []
    for pod in pods:
        trouble = _two_claims(name, pod, adopts)
        if trouble is None:
            mine.append(pod)
        elif not pod.going:
            strays.append(trouble)
    return tuple(mine), tuple(strays)


def _two_claims(name: str, pod: Pod, adopts: bool) -> Trouble | None:
    label = f"its label {LABEL_MODEL_REPLICA} says {pod.model_replica}"
    if pod.volume_of is not None and pod.volume_of != pod.model_replica:
        text = (
            f"pod {pod.name} is claimed by two ModelReplicas: {label}, its FlashBoot volume says {pod.volume_of}; it "
            f"counts for neither. Put the label back (kubectl label --overwrite), or delete the pod"
        )
        return Trouble("PodClaimedTwice", text)
    if not adopts and pod.made_by is not None and not pod.made_by_template_of(name):
        text = (
            f"pod {pod.name} is claimed twice: {label}, and {pod.made_by} made it, while {name} makes its pods itself "
            "from spec.template; it does not count. Take the label out of that workload's template, or let it be "
            "adopted by a ModelReplica without spec.template"
        )
        return Trouble("PodClaimedTwice", text)
    return None
