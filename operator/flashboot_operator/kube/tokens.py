"""TokenReview: whose token is this, and on which node does its pod run?"""

from __future__ import annotations

from flashboot_agent.wire.trust import AUDIENCE
from flashboot_operator.kube.client import Kube

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
NODE_CLAIM = "authentication.kubernetes.io/node-name"
SERVICE_ACCOUNT = "flashboot-agent"


class TokenRefused(Exception):
    """Not the token of an agent on that node; says why."""


async def require_agent(kube: Kube, token: str, *, namespace: str, node: str) -> None:
    """The token is for us, of our agents' service account, and bound to a pod on the node.

    Raises TokenRefused, or KubeError when the API server can't say."""
    spec = {"token": token, "audiences": [AUDIENCE]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    status = (await kube.call("POST", PATH, body=body)).get("status") or {}
    if not status.get("authenticated"):
        raise TokenRefused(f"the API server does not believe the token from node {node}: {status.get('error')}")
    if AUDIENCE not in (status.get("audiences") or []):
        # An authenticator that knows no audiences believes any token of the cluster.
        raise TokenRefused(f"the token from node {node} is for {status.get('audiences')}, expected {AUDIENCE}")
    user = status.get("user") or {}
    expected = f"system:serviceaccount:{namespace}:{SERVICE_ACCOUNT}"
    if user.get("username") != expected:
        raise TokenRefused(f"the token from node {node} is of {user.get('username')}, expected {expected}")
    bound = (user.get("extra") or {}).get(NODE_CLAIM) or []
    if bound != [node]:
        raise TokenRefused(
            f"the token from node {node} is bound to node {bound}; without a node it is no projected token of a pod "
            "(or the API server is older than 1.30)"
        )
