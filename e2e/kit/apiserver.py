"""Plain HTTP to pods, through the API server's pod proxy: works from anywhere where the kubeconfig works.

One kept-alive client instead of a kubectl process per request: the live view asks every node several times a second.
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
        self._http = httpx.Client(base_url=cluster["server"], verify=context, headers=headers, trust_env=False)

    def pod(self, namespace: str, pod: str, port: int, path: str, *, body: Any = None, seconds: float = 10) -> Any:
        """The JSON answer of a pod to a GET, or to a POST when there is a `body`.

        Raises KitError with the status and the beginning of the answer, or why there was none.
        """
        url = f"/api/v1/namespaces/{namespace}/pods/http:{pod}:{port}/proxy{path}"
        try:
            answer = self._http.request("GET" if body is None else "POST", url, json=body, timeout=seconds)
        except httpx.HTTPError as failed:
            raise KitError(f"{namespace}/{pod}:{port}{path}: {type(failed).__name__}: {failed}") from failed
        if answer.status_code != 200:
            raise KitError(f"{namespace}/{pod}:{port}{path}: status {answer.status_code}: {answer.text[:300]}")
        return answer.json()

    def close(self) -> None:
        self._http.close()


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """ssl takes client certificates from files only; the file lives as long as this call."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "client.pem"
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(certificate) + b"\n" + base64.b64decode(key))
        context.load_cert_chain(path)
