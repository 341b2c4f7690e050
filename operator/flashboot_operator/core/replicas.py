"""Pods as replicas: what counts is the group, which is Ready when all of its pods are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from flashboot_operator.core.facts import Pod, Trouble, World, time_of
from flashboot_operator.core.membership import LWS
from flashboot_operator.core.plan import Owner
from flashboot_operator.core.progress import Line
from flashboot_operator.core.together import ANNOTATION_TOGETHER

COMES_LATE = timedelta(seconds=15)
"""A StatefulSet that is older and whose group never met should have its pods."""


@dataclass(frozen=True)
class Replica:
    name: str
    """Of the group; of a replica of one pod, the pod's UID."""
    pods: tuple[Pod, ...]
    ready: bool
    """All of its pods are there and Ready, with the tensors of all ranks in sealed arenas."""
    updated: bool
    """All of its pods are of the present template."""


def by_replica(pods: Iterable[Pod]) -> Mapping[str, tuple[Pod, ...]]:
    """The pods that are not going, by the name of their replica."""
    found: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda p: (p.replica, p.index, p.name)):
        if not pod.going:
            found.setdefault(pod.replica or pod.uid, []).append(pod)
    return {name: tuple(mine) for name, mine in found.items()}


def with_leaders_hash(pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The pods, those of a LeaderWorkerSet with the hash of their group's first: it may give the first a template of
    its own, and one replica is one kind of engine all the same."""
    pods = tuple(pods)
    first = {pod.replica: pod.hash for pod in pods if pod.lws and pod.index == 0 and not pod.going}
    return tuple(replace(pod, hash=first.get(pod.replica, pod.hash)) if pod.lws else pod for pod in pods)


def replicas_of(owner: Owner, pods: Iterable[Pod], lines: Sequence[Line]) -> list[Replica]:
    ready = {line.pod for line in lines if line.stage == "Ready"}
    size, hash_ = owner.pods_per_replica, owner.template_hash
    return [
        Replica(
            name,
            mine,
            ready=[pod.index for pod in mine] == list(range(size)) and all(pod.name in ready for pod in mine),
            updated=hash_ is None or all(pod.hash == hash_ for pod in mine),
        )
        for name, mine in by_replica(pods).items()
    ]


def counted(owner: Owner, world: World, replicas: Sequence[Replica]) -> int:
    """How many replicas exist: those with pods, and those whose pods are still to come."""
    if owner.pods_per_replica > 1:
        return len({replica.name for replica in replicas} | world.sets.keys())
    deployed = (world.deployment or {}).get("status") or {}
    return max(len(replicas), 0 if owner.spec.template is None else deployed.get("replicas") or 0)


def unmade(owner: Owner, world: World) -> list[Trouble]:
    """Groups whose pods do not come. A StatefulSet says why in its Events only, which are not ours to read."""
    made: dict[str, int] = {}
    for pod in world.pods:
        made[pod.replica] = made.get(pod.replica, 0) + 1
    found = []
    for name, set_ in sorted(world.sets.items()):
        meta, size = set_["metadata"], owner.pods_per_replica
        created = time_of(meta["creationTimestamp"])
        new = created is None or world.now - created < COMES_LATE
        met = ANNOTATION_TOGETHER in (meta.get("annotations") or {})
        if made.get(name, 0) < size and not new and not met:
            text = f"replica {name} has {made.get(name, 0)} of {size} pods"
            step = f"kubectl describe statefulset {name} says who refuses them (a ResourceQuota, say)"
            found.append(Trouble("PodCreationFailed", f"{text}; {step}"))
    return found


def with_odd_pods(owner: Owner, world: World, lines: Sequence[Line]) -> list[Line]:
    """The lines; of pods that have no place in a replica of this size they say so."""
    size = owner.pods_per_replica
    odd = {}
    for pod in world.pods:
        if pod.index >= size:
            odd[pod.name] = f"it is number {pod.index} of replica {pod.replica}, and spec.group.size is {size}"
        elif size > 1 and not pod.replica:
            labels = f"{LWS}/name, /group-index and /worker-index"
            odd[pod.name] = (
                f"spec.group.size is {size}, and it has no labels that say of which replica it is ({labels})"
            )
    return [
        replace(line, trouble=Trouble("GroupDiffers", f"pod {line.pod}: {odd[line.pod]}")) if line.pod in odd else line
        for line in lines
    ]
