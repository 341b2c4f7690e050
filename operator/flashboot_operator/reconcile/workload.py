"""Keep the Deployment of a ModelReplica as it should be, by server-side apply, and only when something differs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flashboot_operator.api.base import KIND
from flashboot_operator.core.conditions import QUOTA_STEP
from flashboot_operator.core.facts import Key, Trouble
from flashboot_operator.core.plan import Owner
from flashboot_operator.core.workload import TemplateRefused, deployment
from flashboot_operator.kube.client import Conflict, Forbidden, Invalid, Kube, KubeError, Object
from flashboot_operator.reconcile.mirror import controller_of, ours

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Applied:
    """What was applied last, and what it became."""

    wanted: Object
    uid: str
    generation: int


@dataclass(frozen=True)
class Outcome:
    trouble: Trouble | None = None
    """Why it is not as it should be."""
    error: KubeError | None = None
    """Set when trying again later may help."""


class Workloads:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._applied: dict[Key, Applied] = {}

    def forget(self, key: Key) -> None:
        self._applied.pop(key, None)

    async def ensure(self, key: Key, owner: Owner, live: Object | None) -> Outcome:
        if owner.spec.template is None or owner.going:
            return Outcome()
        try:
            wanted = deployment({"namespace": owner.namespace, "name": owner.name, "uid": owner.uid}, owner.spec)
        except TemplateRefused as error:
            return Outcome(Trouble(error.reason, str(error)))
        if live is not None and not ours(live, owner.uid):
            return self._taken(live, owner)
        if self._current(key, wanted, live):
            return Outcome()
        return await self._apply(key, wanted)

    def _current(self, key: Key, wanted: Object, live: Object | None) -> bool:
        """Whether what is there is what we applied, and nobody has changed it since."""
        last = self._applied.get(key)
        return (
            last is not None
            and live is not None
            and last.wanted == wanted
            and last.uid == live["metadata"]["uid"]
            and live["metadata"]["generation"] <= last.generation
        )

    async def _apply(self, key: Key, wanted: Object) -> Outcome:
        try:
            got = await self._kube.apply(f"/apis/apps/v1/namespaces/{key[0]}/deployments/{key[1]}", wanted)
        except Invalid as error:
            return Outcome(Trouble("TemplateRejected", f"the API server refuses the Deployment: {error.message}"))
        except Forbidden as error:
            text = f"the Deployment is refused: {error.message}"
            if "exceeded quota" in error.message:
                return Outcome(Trouble("QuotaExceeded", f"{text}; {QUOTA_STEP}"), error)
            step = "install the rights of this version (the chart's ClusterRole)"
            return Outcome(Trouble("OperatorForbidden", f"{text}; {step}"), error)
        except Conflict as error:
            return Outcome(
                Trouble("DeploymentConflict", f"the Deployment could not be applied: {error.message}"), error
            )
        self._applied[key] = Applied(wanted, got["metadata"]["uid"], got["metadata"]["generation"])
        log.info("deployment applied", extra={"key": "/".join(key), "replicas": got["spec"]["replicas"]})
        return Outcome()

    def _taken(self, live: Object, owner: Owner) -> Outcome:
        holder = controller_of(live)
        if holder is not None and holder[0] == KIND:
            words = "belongs to an earlier ModelReplica of this name and is being collected"
        else:
            who = holder[0] if holder else "nobody that FlashBoot knows"
            words = f"belongs to {who}: rename the ModelReplica or remove it"
        trouble = Trouble("NameTaken", f"Deployment {owner.name} {words}")
        return Outcome(trouble, KubeError(409, "NameTaken", trouble.message))
