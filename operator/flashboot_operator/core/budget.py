"""How many pods of a ModelReplica an eviction may take at a time: its PodDisruptionBudget. Pure.

One replica, or as many as a roll-out may leave out. Pods that are not Ready anyway are never held (AlwaysAllow), so
that a broken replica does not block the drain of its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashboot_operator.api.base import LABEL_MODEL_REPLICA
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.workload import Object, labels_of, owner_reference


def budget(metadata: Mapping[str, Any], spec: Spec) -> Object:
    """What to apply. For groups it changes with the number of replicas, for a Deployment's pods it does not."""
    name = metadata["name"]
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels_of(name),
            "ownerReferences": [owner_reference(metadata)],
        },
        "spec": {
            "selector": {"matchLabels": {LABEL_MODEL_REPLICA: name}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            **_limit(spec),
        },
    }


def _limit(spec: Spec) -> Object:
    allowed = max(1, spec.rollout.max_unavailable)
    if spec.group.size == 1:
        return {"maxUnavailable": allowed}
    # Kubernetes counts pods, and a group is lost with one of them: so all pods of the groups that must stay.
    replicas = 1 if spec.replicas is None else spec.replicas
    return {"minAvailable": max(0, replicas - allowed) * spec.group.size}
