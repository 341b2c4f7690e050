"""Server-side apply, but only when something differs; and what a refusal means for the ModelReplica."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from flashboot_operator.api.base import KIND
from flashboot_operator.core.facts import Raw, Trouble
from flashboot_operator.core.picture import QUOTA_STEP
from flashboot_operator.kube.client import Conflict, Forbidden, Invalid, Kube, KubeError, Object
from flashboot_operator.reconcile.mirror import controller_of

log = logging.getLogger(__name__)

FOLDERS: Final = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Service": ("/api/v1", "services"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
}

LATE_S = 10.0
"""So long may the watch show an earlier version than the one that we applied; then the server has gone back to it."""
INTERNAL_ERROR: Final = 500
"""What the API server itself cannot do now, and may never: an admission webhook does not answer, say."""
RENAME = "rename the ModelReplica or remove it"


@dataclass(frozen=True)
class Outcome:
    trouble: Trouble | None = None
    """Why it is not as it should be."""
    error: KubeError | None = None
    """Set when trying again later may help."""


@dataclass(frozen=True)
class _Applied:
    """What was applied last, and what it became."""

    wanted: Object
    uid: str
    version: int
    at: float
    """By our own clock."""


def path_of(kind: str, namespace: str, name: str) -> str:
    folder, plural = FOLDERS[kind]
    return f"{folder}/namespaces/{namespace}/{plural}/{name}"


class Applier:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._applied: dict[str, _Applied] = {}

    def forget(self, kind: str, namespace: str, name: str) -> None:
        self._applied.pop(path_of(kind, namespace, name), None)

    async def ensure(self, wanted: Object, live: Raw | None, *, controller: str) -> Outcome:
        """`live`: what is there now. `controller`: UID of the owner that it must have, if it is there."""
        kind, meta = wanted["kind"], wanted["metadata"]
        if live is not None and (controller_of(live) or ("", ""))[1] != controller:
            return taken(kind, live)
        path = path_of(kind, meta["namespace"], meta["name"])
        if self._current(path, wanted, live):
            return Outcome()
        try:
            # What we do not see may be there without our label: then it is not ours, and is not to be taken.
            got = await self._kube.apply(path, wanted, force=live is not None)
        except KubeError as error:
            if not isinstance(error, Invalid | Forbidden | Conflict) and error.status != INTERNAL_ERROR:
                raise
            return refused(kind, error) if live is not None else refused_to_make(kind, meta["name"], error)
        self._applied[path] = _Applied(wanted, got["metadata"]["uid"], _version(got), time.monotonic())
        log.info("applied", extra={"kind": kind, "key": f"{meta['namespace']}/{meta['name']}"})
        return Outcome()

    async def trial(self, wanted: Object) -> Outcome:
        """Whether the API server would reject the object itself; whether there is room for it shows when it is made."""
        kind, meta = wanted["kind"], wanted["metadata"]
        try:
            path = path_of(kind, meta["namespace"], meta["name"])
            await self._kube.apply(path, wanted, force=False, dry_run=True)
        except (Invalid, Conflict) as error:
            return refused_to_make(kind, meta["name"], error)
        except Forbidden as error:
            log.info("not tried: %s", error, extra={"kind": kind})
        return Outcome()

    def _current(self, path: str, wanted: Object, live: Raw | None) -> bool:
        """Whether what is there is what we applied, and nobody has changed it since."""
        last = self._applied.get(path)
        if last is None or live is None or last.wanted != wanted or last.uid != live["metadata"]["uid"]:
            return False
        late = _version(live) < last.version and time.monotonic() - last.at < LATE_S
        return late or _version(live) == last.version


def _version(obj: Raw) -> int:
    """The generation; a kind without one is not watched for what others change."""
    return int(obj["metadata"].get("generation", 0))


def refused(kind: str, error: KubeError) -> Outcome:
    if isinstance(error, Invalid):
        step = "; correct spec.template" if kind in ("Deployment", "StatefulSet") else ""
        return Outcome(Trouble("TemplateRejected", f"the API server refuses the {kind}: {error.message}{step}"))
    if isinstance(error, Forbidden):
        text = f"the {kind} is refused: {error.message}"
        if "exceeded quota" in error.message:
            return Outcome(Trouble("QuotaExceeded", f"{text}; {QUOTA_STEP}"), error)
        step = "install the rights of this version (the chart's ClusterRole)"
        return Outcome(Trouble("OperatorForbidden", f"{text}; {step}"), error)
    return Outcome(
        Trouble("DeploymentConflict", f"the {kind} could not be applied: {error.message}; it is tried again"), error
    )


def refused_to_make(kind: str, name: str, error: KubeError) -> Outcome:
    """Of an object that was not there, as far as we saw."""
    if isinstance(error, Conflict):
        return _name_taken(kind, name, f"is there and not ours ({error.message}): {RENAME}")
    return refused(kind, error)


def taken(kind: str, live: Raw) -> Outcome:
    holder = controller_of(live)
    if holder is not None and holder[0] in (KIND, "StatefulSet"):
        words = "belongs to an earlier ModelReplica of this name and is being collected"
    else:
        words = f"belongs to {holder[0] if holder else 'nobody that FlashBoot knows'}: {RENAME}"
    return _name_taken(kind, live["metadata"]["name"], words)


def _name_taken(kind: str, name: str, words: str) -> Outcome:
    trouble = Trouble("NameTaken", f"{kind} {name} {words}")
    return Outcome(trouble, KubeError(409, "NameTaken", trouble.message))


def metadata_of(namespace: str, name: str, uid: str) -> Object:
    """What the pure makers of objects need of the ModelReplica."""
    return {"namespace": namespace, "name": name, "uid": uid}
