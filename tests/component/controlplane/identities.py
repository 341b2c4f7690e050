"""What the chart and kubelet do for certificates: the empty places of the CA, and an agent's mounted CA and token."""

from __future__ import annotations

import base64
from pathlib import Path

from flashboot_agent.wire.trust import AUDIENCE
from flashboot_operator.core.authority import Authority
from tests.component.controlplane.apiserver import ApiServer
from tests.component.trust import Issuer

NAME = "flashboot-ca"
SERVICE_ACCOUNT = "flashboot-agent"


def prepare(api: ApiServer, namespace: str) -> None:
    """As the chart: a Secret and a ConfigMap without data, and the agents' service account."""
    folder = f"/api/v1/namespaces/{namespace}"
    for kind in ("secrets", "configmaps"):
        api.create(f"{folder}/{kind}", {"metadata": {"name": NAME}})
    api.create(f"{folder}/serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})


def ca(api: ApiServer, namespace: str) -> bytes:
    """What is mounted into agents. Raises KeyError as long as no operator has filled it."""
    found: str = api.call("GET", f"/api/v1/namespaces/{namespace}/configmaps/{NAME}")["data"]["ca.crt"]
    return found.encode()


def issuer(api: ApiServer, namespace: str) -> Issuer:
    """With the CA that the operator made."""
    data = api.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{NAME}")["data"]
    return Issuer(authority=Authority.parse(*(base64.b64decode(data[key]) for key in ("ca.crt", "ca.key"))))


def token(
    api: ApiServer,
    namespace: str,
    pod: str | None,
    *,
    audience: str = AUDIENCE,
    service_account: str = SERVICE_ACCOUNT,
) -> str:
    """A token as kubelet projects it into the pod: real, of the API server, bound to the pod and its node."""
    spec: dict[str, object] = {"audiences": [audience], "expirationSeconds": 3600}
    if pod is not None:
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
    made: str = api.call("POST", path, {"spec": spec})["status"]["token"]
    return made


def mount(api: ApiServer, namespace: str, pod: str, *, ca_file: Path, token_file: Path) -> None:
    """As kubelet before it starts the pod."""
    ca_file.write_bytes(ca(api, namespace))
    token_file.write_text(token(api, namespace, pod))
