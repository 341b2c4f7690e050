"""Which replica a pod is a part of, and which of its pods it is: by labels that its workload's controller sets. Pure.

    FlashBoot's StatefulSets    flashboot.io/replica, apps.kubernetes.io/pod-index
    LeaderWorkerSet             leaderworkerset.sigs.k8s.io/name, …/group-index, …/worker-index

A pod with neither is a replica by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashboot_operator.api.base import LABEL_LEADER, LABEL_MODEL_REPLICA, LABEL_POD_INDEX, LABEL_REPLICA

LWS = "leaderworkerset.sigs.k8s.io"
LWS_NAME, LWS_GROUP_INDEX, LWS_WORKER_INDEX = f"{LWS}/name", f"{LWS}/group-index", f"{LWS}/worker-index"


@dataclass(frozen=True)
class Membership:
    replica: str = ""
    """What it has in common with the other pods of its replica; empty: it is a replica by itself."""
    index: int = 0


def membership_of(labels: Mapping[str, str]) -> Membership:
    """Indices that are no numbers count as none: such a pod is of no group."""
    if LABEL_REPLICA in labels:
        return _member(labels[LABEL_REPLICA], labels.get(LABEL_POD_INDEX, ""))
    if LWS_NAME in labels and LWS_GROUP_INDEX in labels:
        return _member(f"{labels[LWS_NAME]}-{labels[LWS_GROUP_INDEX]}", labels.get(LWS_WORKER_INDEX, ""))
    return Membership()


def _member(replica: str, index: str) -> Membership:
    return Membership(replica, int(index)) if index.isascii() and index.isdigit() else Membership()


def selector_of(name: str, *, pods_per_replica: int, lws: bool = False) -> str:
    """The label selector of exactly one pod per replica, for autoscalers. `lws`: the pods are a LeaderWorkerSet's.

    Of a group that is the first pod, by a label that its controller gives it when it makes it: a label of ours would
    come a moment later, and an autoscaler that looks in between would count too few."""
    first = f"{LABEL_LEADER}=true"
    if pods_per_replica > 1:
        first = f"{LWS_WORKER_INDEX if lws else LABEL_POD_INDEX}=0"
    return f"{LABEL_MODEL_REPLICA}={name},{first}"
