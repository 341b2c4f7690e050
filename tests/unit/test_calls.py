"""Labels of the metrics of API calls: words of roles, never names."""

from __future__ import annotations

import pytest

from flashboot_operator.core.calls import Call, call_of

STATUS = "modelreplicas/status"


@pytest.mark.parametrize(
    ("method", "path", "call"),
    [
        ("GET", "/api/v1/pods", Call("list", "pods")),
        ("GET", "/api/v1/namespaces/ns/pods", Call("list", "pods")),
        ("GET", "/api/v1/namespaces/ns/pods/p", Call("get", "pods")),
        ("GET", "/api/v1/nodes/n", Call("get", "nodes")),
        ("GET", "/api/v1/namespaces/ns", Call("get", "namespaces")),
        ("PATCH", "/apis/flashboot.io/v1alpha1/namespaces/ns/modelreplicas/m/status", Call("patch", STATUS)),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", Call("create", "tokenreviews")),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", Call("update", "leases")),
        ("GET", "/openapi/v3/apis/flashboot.io/v1alpha1", Call("get", "other")),
        ("GET", "/", Call("get", "other")),
    ],
)  # fmt: skip
def test_a_call_is_named_as_in_a_role(method: str, path: str, call: Call) -> None:
    assert call_of(method, path) == call


def test_a_watch_is_a_verb_of_its_own() -> None:
    assert call_of("GET", "/apis/apps/v1/deployments", watch=True) == Call("watch", "deployments")
