"""The pods of a ModelReplica: the user's template with what FlashBoot adds, and nothing else changed; their Deployment.

A change of `replicas` alone leaves the template as it is, byte for byte, so that scaling never restarts a pod.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flashboot_agent.wire.attach import MOUNT_PATH
from flashboot_agent.wire.door import ATTRIBUTE_MODEL_REPLICA, DRIVER_NAME
from flashboot_operator.api.base import ANNOTATION_ENGINE_HASH, API_VERSION, KIND, LABEL_LEADER, LABEL_MODEL_REPLICA
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.devices import GPUS, devices_of
from flashboot_operator.core.expected import engine_hash, engine_index
from flashboot_operator.core.grace import with_grace

VOLUME = "flashboot"
DEFAULT_PORT = 30000
"""SGLang's own default of --port."""
PORT = re.compile("[0-9]{1,5}")

SIZES = {
    "tensor": ("--tp-size", "--tp", "--tensor-parallel-size"),
    "pipeline": ("--pp-size", "--pp", "--pipeline-parallel-size"),
}
"""Field of spec.parallelism → how SGLang's arguments call it."""

TemplateReason = Literal["TemplateRejected", "MoreRanksThanDevices"]

OURS = ("--load-format", "--model-loader-extra-config")
NODES = ("--nnodes", "--node-rank", "--dist-init-addr")

Object = dict[str, Any]


class TemplateRefused(Exception):
    """The template cannot be brought together with what FlashBoot adds; the message names the field."""

    def __init__(self, message: str, reason: TemplateReason = "TemplateRejected") -> None:
        super().__init__(message)
        self.reason: TemplateReason = reason


@dataclass(frozen=True)
class Additions:
    """What the pods of one workload get beyond what all get."""

    labels: Mapping[str, str]
    args: Sequence[str] = ()
    env: Sequence[Object] = ()


ALONE = Additions(labels={LABEL_LEADER: "true"})
"""A pod that is a replica by itself."""


def _option(argv: list[str], *names: str) -> str | None:
    """The value of an option that is written under one of the names; the last one counts, as for the engine."""
    found = None
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        option, equals, value = word.partition("=")
        if option in names:
            found = value if equals else following
    return found


def _port(argv: list[str]) -> int:
    value = _option(argv, "--port") or ""
    return int(value) if PORT.fullmatch(value) else DEFAULT_PORT


def _require_sizes(spec: Spec, argv: list[str], where: str) -> None:
    """Raises TemplateRefused when the engine would have other ranks than the spec says."""
    for field, names in SIZES.items():
        said, wanted = _option(argv, *names), getattr(spec.parallelism, field)
        if said is not None and said != str(wanted):
            raise TemplateRefused(
                f"{where}.args has {names[0]} {said}, and spec.parallelism.{field} is {wanted}: both must be the same, "
                "since each rank has an arena of its own"
            )


def _require_revision(spec: Spec, argv: list[str], where: str) -> None:
    """Raises TemplateRefused when the engine would load another revision than its bytes go round under."""
    said = _option(argv, "--revision")
    if said is not None and said != spec.model.revision:
        raise TemplateRefused(
            f"{where}.args has --revision {said}, and spec.model.revision is {spec.model.revision}: both must be the "
            "same, since replicas of one revision share their bytes. Change them together"
        )


def _require_devices(spec: Spec, engine: Object, where: str) -> None:
    """Raises TemplateRefused when the pod asks for fewer GPUs than it has ranks. One that asks for none may get them in
    another way."""
    asked = devices_of(engine)
    ranks = spec.parallelism.tensor * spec.parallelism.pipeline // spec.group.size
    if asked is not None and asked < ranks:
        raise TemplateRefused(
            f"{where}.resources.limits has {asked} {GPUS}, and spec.parallelism makes {ranks} ranks in a pod, each of "
            "which needs one: raise the limit or lower spec.parallelism",
            "MoreRanksThanDevices",
        )


def loader_args(spec: Spec) -> list[str]:
    config = {
        "flashboot": {
            "model": spec.model.name,
            "revision": spec.model.revision,
            "onMismatch": spec.transfer.on_mismatch,
            "cloneTimeoutSeconds": spec.transfer.clone_timeout_seconds,
        }
    }
    return ["--load-format", "private", "--model-loader-extra-config", json.dumps(config, separators=(",", ":"))]


def pod_template(name: str, spec: Spec, more: Additions = ALONE) -> Object:
    """The template of the pods.

    Raises:
        TemplateRefused: the template already has what FlashBoot adds, or gives it no place.
    """
    assert spec.template is not None
    template: Object = copy.deepcopy(spec.template)
    pod = template["spec"]
    index = engine_index(pod)
    engine = pod["containers"][index]
    where = f"spec.template.spec.containers[{index}]"
    argv = [*(engine.get("command") or []), *(engine.get("args") or [])]
    if not argv:
        raise TemplateRefused(
            f"{where} ({engine.get('name')}) has neither command nor args: FlashBoot appends the loader's arguments to "
            "args, which would replace the image's own command. Write the engine's command line there"
        )
    for word in argv:
        if word.split("=", 1)[0] in OURS:
            raise TemplateRefused(f"{where}.args has {word!r}, which FlashBoot sets itself: remove it")
        if word.split("=", 1)[0] in NODES:
            raise TemplateRefused(
                f"{where}.args has {word!r}, which FlashBoot sets itself for a replica of several pods: remove it, and "
                f"say in spec.group.size how many there are (now {spec.group.size})"
            )
    _require_sizes(spec, argv, where)
    _require_revision(spec, argv, where)
    _require_devices(spec, engine, where)
    if any(v.get("name") == VOLUME for v in pod.get("volumes") or []):
        raise TemplateRefused(
            f"spec.template.spec.volumes has a volume {VOLUME!r}, the name of FlashBoot's own: rename it"
        )
    if any(m.get("mountPath", "").rstrip("/") == MOUNT_PATH for m in engine.get("volumeMounts") or []):
        raise TemplateRefused(
            f"{where}.volumeMounts has {MOUNT_PATH}, where FlashBoot's own volume goes: choose another path"
        )

    meta = template.setdefault("metadata", {})
    meta["labels"] = {**(meta.get("labels") or {}), LABEL_MODEL_REPLICA: name, **more.labels}
    meta["annotations"] = {
        **(meta.get("annotations") or {}),
        ANNOTATION_ENGINE_HASH: engine_hash(pod, spec.model.revision),
    }
    engine["args"] = [*(engine.get("args") or []), *loader_args(spec), *more.args]
    engine["env"] = [*with_grace(pod, engine), *_not_yet(engine, more.env)]
    engine["volumeMounts"] = [
        *(engine.get("volumeMounts") or []),
        {"name": VOLUME, "mountPath": MOUNT_PATH, "readOnly": True},
    ]
    if "readinessProbe" not in engine:
        engine["readinessProbe"] = {
            "httpGet": {"path": "/ready", "port": _port(argv)},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        }
    pod["volumes"] = [
        *(pod.get("volumes") or []),
        {
            "name": VOLUME,
            "csi": {"driver": DRIVER_NAME, "readOnly": True, "volumeAttributes": {ATTRIBUTE_MODEL_REPLICA: name}},
        },
    ]
    return template


def _not_yet(engine: Object, env: Sequence[Object]) -> list[Object]:
    """Those that the template does not set itself."""
    known = {entry.get("name") for entry in engine.get("env") or []}
    return [entry for entry in env if entry["name"] not in known]


def owner_reference(metadata: Mapping[str, Any]) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def labels_of(name: str) -> dict[str, str]:
    """Of the objects that the operator makes for the ModelReplica."""
    return {LABEL_MODEL_REPLICA: name, "app.kubernetes.io/managed-by": "flashboot"}


def deployment(metadata: Mapping[str, Any], spec: Spec, template: Object | None = None) -> Object:
    """What to apply for the ModelReplica. `template`: of its pods, where it is made already.

    Raises:
        TemplateRefused: see pod_template.
    """
    name = metadata["name"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels_of(name),
            "ownerReferences": [owner_reference(metadata)],
        },
        "spec": {
            "replicas": 1 if spec.replicas is None else spec.replicas,
            "selector": {"matchLabels": {LABEL_MODEL_REPLICA: name}},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": spec.rollout.max_surge, "maxUnavailable": spec.rollout.max_unavailable},
            },
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": spec.rollout.progress_deadline_seconds,
            "template": template or pod_template(name, spec),
        },
    }
