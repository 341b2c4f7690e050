"""What is applied for one replica of several pods: a StatefulSet, whose pods are its ranks' homes, and its Service.

All groups have the same template but for the name under which their engines meet, so that the engine's hash, and with
it the arenas, are the same for all. Which node of SGLang a pod is, the pod's index says; the name of the first one is
known before there is a pod (docs/design/0018). A group is never changed in place: another template is another group
(core/turnover.py), since engines of two templates cannot work together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flashboot_agent.core.identity import digest_of
from flashboot_operator.api.base import GROUP, LABEL_POD_INDEX, LABEL_REPLICA
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.workload import (
    Additions,
    Object,
    TemplateRefused,
    labels_of,
    owner_reference,
    pod_template,
)

PORT = 20000
"""Where the engines of a group meet, on the first pod. SGLang also uses the next ones."""
INDEX_VARIABLE = "FLASHBOOT_POD_INDEX"
ANNOTATION_TEMPLATE = f"{GROUP}/template"
"""On a group's StatefulSet: the digest of the template that it was made from."""
LONGEST_NAME = 40
"""Names of pods, and labels with a hash behind the name, have 63 characters at most."""


def group_name(name: str, ordinal: int) -> str:
    return f"{name}-{ordinal}"


def ordinal_of(name: str, group: str) -> int | None:
    """The inverse; None for a name that is no group's of ours."""
    tail = group.removeprefix(f"{name}-")
    return int(tail) if group == f"{name}-{tail}" and re.fullmatch(r"0|[1-9][0-9]{0,5}", tail) else None


def _additions(spec: Spec, namespace: str, group: str) -> Additions:
    return Additions(
        labels={LABEL_REPLICA: group},
        args=[
            *("--nnodes", str(spec.group.size)),
            *("--node-rank", f"$({INDEX_VARIABLE})"),
            *("--dist-init-addr", f"{group}-0.{group}.{namespace}.svc:{PORT}"),
        ],
        env=[
            _from_pod(INDEX_VARIABLE, f"metadata.labels['{LABEL_POD_INDEX}']"),
            # Else SGLang finds its own address by a route to the internet, which there need not be.
            _from_pod("SGLANG_HOST_IP", "status.podIP"),
        ],
    )


def _from_pod(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def template_digest(metadata: Mapping[str, Any], spec: Spec) -> str:
    """The same for all groups of one template, and for no other.

    Raises:
        TemplateRefused: see pod_template; or the ModelReplica's name is none for groups.
    """
    return digest_of(_template(metadata, spec, group_name(metadata["name"], 0)))


def _template(metadata: Mapping[str, Any], spec: Spec, group: str) -> Object:
    name = metadata["name"]
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise TemplateRefused(
            f"metadata.name {name!r} is no name for replicas of several pods, which have host names made of it: at "
            f"most {LONGEST_NAME} lower case letters, digits and -, a letter first"
        )
    return pod_template(name, spec, _additions(spec, metadata["namespace"], group))


def stateful_set(metadata: Mapping[str, Any], spec: Spec, group: str, digest: str | None = None) -> Object:
    """The group of this name. `digest`: of the template, where it is known.

    Raises:
        TemplateRefused: see template_digest.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": group,
            "namespace": metadata["namespace"],
            "labels": labels_of(metadata["name"]),
            "annotations": {ANNOTATION_TEMPLATE: digest or template_digest(metadata, spec)},
            "ownerReferences": [owner_reference(metadata)],
        },
        "spec": {
            "replicas": spec.group.size,
            "serviceName": group,
            # No pod waits for another one's readiness: engines become ready together.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {LABEL_REPLICA: group}},
            "template": _template(metadata, spec, group),
        },
    }


def service(metadata: Mapping[str, Any], group: str, set_uid: str) -> Object:
    """The names of a group's pods. It goes with the StatefulSet."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": group,
            "namespace": metadata["namespace"],
            "labels": labels_of(metadata["name"]),
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": group, "uid": set_uid, "controller": True}
            ],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # engines meet long before they are ready
            "selector": {LABEL_REPLICA: group},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
