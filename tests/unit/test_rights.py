"""Rights beside their use: what the audit log's report says."""

from __future__ import annotations

from typing import Any

from kit.rights import Right, granted, report, used

USER = "system:serviceaccount:flashboot-system:flashboot-operator"
ROLES: list[dict[str, Any]] = [
    {
        "kind": "ClusterRole",
        "metadata": {"name": "op"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["list", "watch"]},
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["create", "patch"]},
            {"apiGroups": ["flashboot.io"], "resources": ["modelreplicas/status"], "verbs": ["patch"]},
        ],
    },
    {
        "kind": "Role",
        "metadata": {"name": "viewer"},
        "rules": [{"apiGroups": [""], "resources": ["s"], "verbs": ["get"]}],
    },
    {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "op"},
        "roleRef": {"kind": "ClusterRole", "name": "op"},
        "subjects": [{"kind": "ServiceAccount", "name": "flashboot-operator", "namespace": "flashboot-system"}],
    },
    {"kind": "Service", "metadata": {"name": "other"}},
]


def entry(verb: str, resource: str, group: str = "", sub: str = "", code: int = 200) -> dict[str, Any]:
    ref = {"resource": resource, "apiGroup": group, "subresource": sub}
    return {
        "verb": verb,
        "user": {"username": USER},
        "objectRef": {key: value for key, value in ref.items() if value},
        "responseStatus": {"code": code},
    }


def test_only_bound_roles_grant() -> None:
    rights = granted(ROLES)
    assert len(rights) == 7
    assert {right.user for right in rights} == {USER}
    assert Right(USER, "flashboot.io", "modelreplicas/status", "patch") in rights


def test_what_nobody_did_is_listed() -> None:
    entries = [
        entry("list", "pods"),
        entry("watch", "pods"),
        entry("list", "nodes", code=403),
        entry("patch", "deployments", "apps", code=201),
        entry("patch", "modelreplicas", "flashboot.io", "status"),
        {"verb": "get", "user": {"username": USER}, "requestURI": "/openapi/v3"},
    ]
    assert report(ROLES, entries).splitlines() == ["flashboot-operator: list nodes", "flashboot-operator: watch nodes"]
    assert used([]) == set()


def test_all_used_is_an_empty_list() -> None:
    assert report(ROLES[:0], []) == ""
