"""To say in a ModelReplica itself that this operator cannot work on it, and why; its pods and arenas are left alone."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import ValidationError

from flashboot_operator.api.base import API_VERSION, KIND
from flashboot_operator.api.podshape import NoPodTemplate
from flashboot_operator.core.conditions import refused
from flashboot_operator.core.events import transitions
from flashboot_operator.core.facts import Key, Trouble
from flashboot_operator.core.note import Note
from flashboot_operator.kube.client import Kube, KubeError, Object
from flashboot_operator.kube.events import Recorder
from flashboot_operator.kube.lease import Lease
from flashboot_operator.kube.schema import Schema, SchemaOutdated, require_served
from flashboot_operator.reconcile.objects import Objects, path_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subject:
    """Whom it is about, when the spec cannot be read."""

    namespace: str
    name: str
    uid: str


def not_understood(error: ValidationError) -> Trouble:
    """A template that is none; else a newer CRD may allow what this operator does not know."""
    first = error.errors()[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), NoPodTemplate):
        return Trouble("TemplateRejected", f"spec.{cause}; correct spec.template")
    where = ".".join(str(part) for part in first["loc"])
    return Trouble(
        "SpecNotUnderstood", f"spec.{where}: {first['msg']}; upgrade the operator, or take it out of the spec"
    )


def refusal(key: Key, obj: Object, trouble: Trouble) -> tuple[Object, Subject, list[Note]]:
    """The status that says so, and what to tell of it."""
    before, generation = (obj.get("status") or {}).get("conditions") or [], obj["metadata"]["generation"]
    said = refused(trouble, generation, before, datetime.now(UTC))
    conditions = [c.model_dump(by_alias=True, mode="json") for c in said]
    status = {**(obj.get("status") or {}), "observedGeneration": generation, "conditions": conditions}
    return status, Subject(*key, obj["metadata"]["uid"]), transitions(said, before)


async def require_schema(
    kube: Kube, lease: Lease, recorder: Recorder, wanted: Schema, *, wait_s: float, deadline_s: float
) -> None:
    """Raises SchemaMismatch when the API server serves something else than `wanted` for `wait_s`, and says in the
    ModelReplicas, within `deadline_s`, when it is older."""
    try:
        await require_served(kube, wanted, deadline_s=wait_s)
    except SchemaOutdated as error:
        await _tell_all(kube, lease, recorder, Trouble("CustomResourceOutdated", str(error)), deadline_s)
        raise


async def _tell_all(kube: Kube, lease: Lease, recorder: Recorder, trouble: Trouble, deadline_s: float) -> None:
    """Unless another operator is at work."""
    try:
        async with asyncio.timeout(deadline_s):
            await lease.acquire()
            objects = Objects(kube)
            for key in sorted(await objects.list()):
                obj = objects.peek(key) or {}
                status, subject, notes = refusal(key, obj, trouble)
                if status == obj.get("status"):
                    continue
                recorder.tell(subject, notes)
                meta = {"namespace": key[0], "name": key[1], "uid": subject.uid}
                body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}
                await kube.apply(path_of(key, "status"), body)
            await recorder.drain()
    except (KubeError, TimeoutError) as error:
        log.warning("it could not be said in every ModelReplica: %s", error or "another operator holds the lease")
    finally:
        await lease.release()
