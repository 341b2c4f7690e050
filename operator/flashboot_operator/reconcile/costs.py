"""Tell Kubernetes which pods of our Deployments should go first, by the annotation that its ReplicaSets obey.

A pod is patched only when its cost changes (cost_of_loss.py has few steps), at most MOST pods at a look; what is left
over is for the next one. What somebody else writes there is not fought over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from flashboot_operator.core.cost_of_loss import ORDINARY, Standing
from flashboot_operator.core.facts import ANNOTATION_DELETION_COST, Key, Pod
from flashboot_operator.core.plan import Owner
from flashboot_operator.kube.client import Conflict, Forbidden, Kube, NotFound

log = logging.getLogger(__name__)

MOST = 8


class Costs:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._told: dict[Key, dict[str, int]] = {}
        """Key → pod UID → what we said last."""
        self._forbidden = False

    def forget(self, key: Key) -> None:
        self._told.pop(key, None)

    async def tell(self, key: Key, owner: Owner, standings: Sequence[Standing]) -> bool:
        """True when there is more to say. Raises KubeError."""
        if owner.spec.template is None or owner.pods_per_replica > 1 or owner.going or self._forbidden:
            return False  # of pods that others make, others decide; of groups, the operator itself
        pods = [(pod, each.cost) for each in standings for pod in each.pods]
        told = {uid: cost for uid, cost in self._told.get(key, {}).items() if any(pod.uid == uid for pod, _ in pods)}
        self._told[key] = told
        if len(pods) < 2:
            return False  # nobody has a choice
        due = [(pod, cost) for pod, cost in pods if told.get(pod.uid, pod.deletion_cost) != cost]
        for pod, cost in due[:MOST]:
            await self._patch(pod, cost)
            told[pod.uid] = cost
        return len(due) > MOST

    async def _patch(self, pod: Pod, cost: int) -> None:
        value = None if cost == ORDINARY else str(cost)
        body = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION_DELETION_COST: value}}}
        try:
            await self._kube.merge(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", body)
        except (NotFound, Conflict):
            return  # it is gone, or another pod has its name now
        except Forbidden as error:
            self._forbidden = True
            log.error("no costs of pods any more: %s; install the chart's ClusterRole of this version", error)
            return
        log.info("deletion cost told", extra={"pod": pod.name, "cost": cost})
