"""The operator's rights, no more than it uses: the tests run it with exactly these, and any 403 shows in its log."""

from __future__ import annotations

from typing import Any

from tests.component.controlplane.apiserver import OPERATOR, ApiServer

Rule = dict[str, list[str]]

EVERYWHERE: list[Rule] = [
    {"apiGroups": ["flashboot.io"], "resources": ["modelreplicas"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": ["flashboot.io"], "resources": ["modelreplicas/status"], "verbs": ["patch"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "watch", "create", "patch"]},
    {"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["list", "watch", "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["list", "watch", "create", "patch"]},
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list", "watch", "create", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
]
OWN_NAMESPACE: list[Rule] = [
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["flashboot-operator"],
        "verbs": ["get", "update"],
    },
    {
        "apiGroups": [""],
        "resources": ["secrets", "configmaps"],
        "resourceNames": ["flashboot-ca"],
        "verbs": ["get", "update"],
    },
]


def grant(api: ApiServer, namespace: str) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    subject = [{"kind": "User", "name": OPERATOR, "apiGroup": "rbac.authorization.k8s.io"}]
    meta = {"name": "component-test-operator"}
    for kind, folder, rules in (
        ("ClusterRole", rbac, EVERYWHERE),
        ("Role", f"{rbac}/namespaces/{namespace}", OWN_NAMESPACE),
    ):
        plural = f"{kind.lower()}s"
        binding: dict[str, Any] = {
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": meta["name"]},
            "subjects": subject,
        }
        api.create(f"{folder}/{plural}", {"metadata": meta, "rules": rules})
        api.create(f"{folder}/{plural[:-1]}bindings", binding)
