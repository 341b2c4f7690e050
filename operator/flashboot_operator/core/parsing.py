"""From nodes and pods as the API server has them to facts."""

from __future__ import annotations

import re

from flashboot_agent.wire.door import ATTRIBUTE_MODEL_REPLICA, DRIVER_NAME
from flashboot_operator.api.base import ANNOTATION_ENGINE_HASH, LABEL_MODEL_REPLICA
from flashboot_operator.core.devices import count, devices_of
from flashboot_operator.core.expected import engine_hash, engine_index
from flashboot_operator.core.facts import (
    ANNOTATION_DELETION_COST,
    GPU_CLIQUE,
    GPU_PRODUCT,
    NO_DOMAIN,
    Node,
    Pod,
    Raw,
    Trouble,
    time_of,
)
from flashboot_operator.core.membership import LWS_NAME, membership_of

ENGINE_HASH = re.compile(r"[0-9a-f]{12}")
LEAVING_TAINTS = frozenset(
    {
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/out-of-service",
        # Autoscalers of nodes take one away without a cordon.
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
    }
)


def node_of(raw: Raw) -> Node:
    labels = raw["metadata"].get("labels") or {}
    info = (raw.get("status") or {}).get("nodeInfo") or {}
    spec = raw.get("spec") or {}
    taints = {taint["key"] for taint in spec.get("taints") or []}
    conditions = (raw.get("status") or {}).get("conditions") or []
    kubelet = next((c["status"] for c in conditions if c["type"] == "Ready"), "True")
    return Node(
        name=raw["metadata"]["name"],
        product=labels.get(GPU_PRODUCT) or "cpu",
        architecture=info.get("architecture") or labels.get("kubernetes.io/arch") or "unknown",
        domain=labels.get(GPU_CLIQUE) or NO_DOMAIN,
        cordoned=bool(spec.get("unschedulable")) or bool(taints & LEAVING_TAINTS),
        ready=kubelet == "True",
        gpus=count((raw.get("status") or {}).get("capacity") or {}) or 0,
    )


def pod_of(raw: Raw) -> Pod:
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    ready, scheduled = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    created = time_of(meta["creationTimestamp"])
    assert created is not None
    bound = time_of(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    labels = meta.get("labels") or {}
    member, engine = membership_of(labels), _engine(spec, status)
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        namespace=meta["namespace"],
        model_replica=labels.get(LABEL_MODEL_REPLICA, ""),
        node=spec.get("nodeName") or None,
        hash=_said_hash(meta) or engine_hash(spec),
        created=created,
        bound=(bound or created) if spec.get("nodeName") else None,
        ready=ready.get("status") == "True",
        ready_at=time_of(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        going=bool(meta.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        started=time_of(((engine.get("state") or {}).get("running") or {}).get("startedAt")),
        deletion_cost=_cost((meta.get("annotations") or {}).get(ANNOTATION_DELETION_COST)),
        trouble=_trouble(meta["name"], spec, status, scheduled),
        volume_of=volume_of(spec),
        made_by=_made_by(meta),
        gpus=devices_of((spec.get("containers") or [{}])[engine_index(spec)]),
        replica=member.replica,
        index=member.index,
        restarts=engine.get("restartCount", 0),
        lws=LWS_NAME in labels,
    )


def _said_hash(meta: Raw) -> str | None:
    """What FlashBoot wrote there when it made the pod; of adopted pods anybody may have written anything."""
    said = str((meta.get("annotations") or {}).get(ANNOTATION_ENGINE_HASH))
    return said if ENGINE_HASH.fullmatch(said) else None


def volume_of(spec: Raw) -> str | None:
    """The ModelReplica that the pod's FlashBoot volume names."""
    volumes = [volume.get("csi") or {} for volume in spec.get("volumes") or []]
    attributes = [csi.get("volumeAttributes") or {} for csi in volumes if csi.get("driver") == DRIVER_NAME]
    return next((each[ATTRIBUTE_MODEL_REPLICA] for each in attributes if each.get(ATTRIBUTE_MODEL_REPLICA)), None)


def _made_by(meta: Raw) -> str | None:
    owners = [owner for owner in meta.get("ownerReferences") or [] if owner.get("controller")]
    return f"{owners[0]['kind']} {owners[0]['name']}" if owners else None


def _engine(spec: Raw, status: Raw) -> Raw:
    """The status of the engine's container."""
    containers = spec.get("containers") or []
    name = containers[engine_index(spec)]["name"] if containers else ""
    return next((c for c in status.get("containerStatuses") or [] if c["name"] == name), {})


def _cost(text: str | None) -> int:
    """Kubernetes takes what is no number for 0, too."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
IMAGE_STEP = "correct the image's name in spec.template, or its imagePullSecrets"
NODE_STEP = "add a node that fits, make room, tolerate the taint, or ask for less in spec.template"
CREATE_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


def _trouble(name: str, spec: Raw, status: Raw, scheduled: Raw) -> Trouble | None:
    """The first thing that kubelet or the scheduler holds against the pod."""
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Trouble("PodUnschedulable", f"pod {name}: {scheduled.get('message', 'no node takes it')}; {NODE_STEP}")
    if status.get("phase") == "Failed":
        return Trouble(
            "PodFailed", f"pod {name}: {status.get('reason', 'failed')}: {status.get('message', 'no message')}"
        )
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "no message")
        where = f"pod {name}: container {container['name']} on {spec.get('nodeName')}"
        if reason in IMAGE_REASONS:
            return Trouble("ImagePullFailed", f"{where}: {reason}: {message}; {IMAGE_STEP}")
        if reason in CREATE_REASONS:
            return Trouble("ContainerNotCreated", f"{where}: {reason}: {message}; correct spec.template")
        if reason == "CrashLoopBackOff":
            ended = (container.get("lastState") or {}).get("terminated") or {}
            why = f"exit code {ended.get('exitCode')}, {ended.get('reason', 'no reason')}"
            return Trouble(
                "EngineCrashing",
                f"{where} ended {container.get('restartCount', 0)} times, last with {why}; "
                f"see kubectl logs --previous {name}",
            )
    return None
