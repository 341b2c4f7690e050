"""What all API models share: camelCase on the wire, descriptions from docstrings, CEL rules beside the fields.

Unknown fields are ignored while parsing, because an API server with a newer CRD may hand out fields that this operator
does not know; the API server itself refuses unknown fields of users.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

GROUP: Final = "flashboot.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "ModelReplica"
PLURAL: Final = "modelreplicas"

LABEL_MODEL_REPLICA: Final = f"{GROUP}/model-replica"
"""On pods: the ModelReplica that they belong to. The label alone makes a pod adopted."""
LABEL_LEADER: Final = f"{GROUP}/leader"
"""On the pods of FlashBoot's Deployments, each of which is a replica, so that an autoscaler counts replicas."""
LABEL_REPLICA: Final = f"{GROUP}/replica"
"""On the pods of a group: the replica that they are of, by the name of its StatefulSet."""
LABEL_POD_INDEX: Final = "apps.kubernetes.io/pod-index"
"""By Kubernetes, on a StatefulSet's pods. Exactly one pod of a group has 0, without a write of ours."""
ANNOTATION_ENGINE_HASH: Final = f"{GROUP}/engine-hash"
"""On pods of FlashBoot's workloads: the hash of what matters in their engine container."""


class ApiModel(BaseModel):
    """Base of all API models."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


def rules(*entries: dict[str, str]) -> dict[str, Any]:
    """Schema extra with CEL rules; each has `rule`, `message` and, where it helps, `fieldPath` and `reason`."""
    return {"x-kubernetes-validations": list(entries)}


def camel(name: str) -> str:
    """Like pydantic's, but `TTL` and `URL` stay as Kubernetes writes them."""
    return to_camel(name).replace("Ttl", "TTL")
