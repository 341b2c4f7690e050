"""Whose a pod is, when two ModelReplicas lay claim to it. Pure.

A pod is of the ModelReplica that its label names, unless something that cannot be changed any more says otherwise:

    FlashBoot's volume names another ModelReplica        the label was changed, or was wrong from the start
    the ModelReplica makes its pods itself (it has a     a workload of somebody else makes pods with its label, or
    template), and no workload of its own made this one  a person made one by hand

Such a pod counts for nobody: it gets no arena (its node is told so), is in no number, and both ModelReplicas say so
until it is put right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flashboot_operator.api.base import LABEL_MODEL_REPLICA
from flashboot_operator.core.facts import Pod, Stray, Trouble


def divide(name: str, pods: Iterable[Pod], *, adopts: bool) -> tuple[tuple[Pod, ...], tuple[Stray, ...]]:
    """The pods that count for the ModelReplica, and the others that are not going. adopts: it has no template."""
    mine, strays = [], []
    for pod in pods:
        trouble = _two_claims(name, pod, adopts)
        if trouble is None:
            mine.append(pod)
        elif not pod.going:
            strays.append(Stray(pod, trouble))
    return tuple(mine), tuple(strays)


def barred_of(strays: Sequence[Stray]) -> dict[str, frozenset[str]]:
    """Node → UIDs of the pods there that get no arena, whatever their volume says."""
    found: dict[str, set[str]] = {}
    for stray in strays:
        if stray.pod.node is not None:
            found.setdefault(stray.pod.node, set()).add(stray.pod.uid)
    return {node: frozenset(uids) for node, uids in found.items()}


def _two_claims(name: str, pod: Pod, adopts: bool) -> Trouble | None:
    label = f"its label {LABEL_MODEL_REPLICA} says {pod.model_replica}"
    if pod.volume_of is not None and pod.volume_of != pod.model_replica:
        text = (
            f"pod {pod.name} is claimed by two ModelReplicas: {label}, its FlashBoot volume says {pod.volume_of}; it "
            f"counts for neither. Put the label back (kubectl label --overwrite), or delete the pod"
        )
        return Trouble("PodClaimedTwice", text)
    if not adopts and not pod.made_by_template_of(name):
        text = (
            f"pod {pod.name} is claimed twice: {label}, and {pod.made_by or 'a person'} made it, while {name} makes "
            "its pods itself from spec.template; it does not count. Take the label out of that workload's template, "
            "or off the pod, or let it be adopted by a ModelReplica without spec.template"
        )
        return Trouble("PodClaimedTwice", text)
    return None
