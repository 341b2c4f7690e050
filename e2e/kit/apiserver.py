"""The API server, asked over one kept-alive connection: for objects, and through its proxy for what a pod answers.

A kubectl process per question takes 80 ms of a core. Who waits asks several times a second, and the engines that are
waited for need the cores, so that tests read here; they change things with kubectl, as a person would.
"""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any

import httpx

from kit.errors import KitError
from kit.kubectl import Kubectl

ROOTS = {
    "pods": "/api/v1",
    "nodes": "/api/v1",
    "events": "/apis/events.k8s.io/v1",
    "deployments": "/apis/apps/v1",
    "daemonsets": "/apis/apps/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "poddisruptionbudgets": "/apis/policy/v1",
    "modelreplicas": "/apis/flashboot.io/v1alpha1",
}
"""Where the API server has the objects that are read here."""

Object = dict[str, Any]


class ApiServer:
    """The API server that a kubeconfig names, with its credentials. Thread-safe."""

    def __init__(self, kubectl: Kubectl) -> None:
        config = json.loads(kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"]
        context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
            if "certificate-authority-data" in cluster
            else None
        )
        headers = {}
        if "client-certificate-data" in user:
            _load_client_certificate(context, user["client-certificate-data"], user["client-key-data"])
        elif "token" in user:
            headers["Authorization"] = f"Bearer {user['token']}"
        else:
            raise KitError(f"{kubectl.kubeconfig}: the user has neither a client certificate nor a token")
        self._http = httpx.Client(
            base_url=cluster["server"], verify=context, headers=headers, trust_env=False, timeout=10
        )

    def get(self, kind: str, name: str, namespace: str) -> Object:
        """One object. Raises KitError when there is none."""
        found: Object = self._answer("GET", f"{_folder(kind, namespace)}/{name}")
        return found

    def items(self, kind: str, namespace: str | None, *, labels: str = "", fields: str = "") -> list[Object]:
        """All objects of a kind, in a namespace or (None) of all, that the selectors choose."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        asked = {name: text for name, text in selectors.items() if text}
        found: list[Object] = self._answer("GET", _folder(kind, namespace), params=asked)["items"]
        return found

    def pod(self, namespace: str, pod: str, port: int, path: str, *, body: Any = None, seconds: float = 10) -> Any:
        """The JSON answer of a pod to a GET, or to a POST when there is a `body`.

        Raises KitError with the status and the beginning of the answer, or why there was none.
        """
        url = f"{_folder('pods', namespace)}/http:{pod}:{port}/proxy{path}"
        return self._answer("GET" if body is None else "POST", url, json=body, timeout=seconds)

    def _answer(self, method: str, url: str, **options: Any) -> Any:
        try:
            answer = self._http.request(method, url, **options)
        except httpx.HTTPError as failed:
            raise KitError(f"{method} {url}: {type(failed).__name__}: {failed}") from failed
        if answer.status_code != 200:
            raise KitError(f"{method} {url}: status {answer.status_code}: {answer.text[:300]}")
        return answer.json()

    def close(self) -> None:
        self._http.close()


def _folder(kind: str, namespace: str | None) -> str:
    return f"{ROOTS[kind]}/{f'namespaces/{namespace}/' if namespace else ''}{kind}"


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """ssl takes client certificates from files only; the file lives as long as this call."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.pem"
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(certificate) + b"\n" + base64.b64decode(key))
        context.load_cert_chain(path)
