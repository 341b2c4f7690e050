"""The metrics server, which `kubectl top` and autoscalers read: a process of the host, as all of the control plane.

To the cluster it is an aggregated API whose Service has no selector: an EndpointSlice names the host's address.
"""

import base64
import json
from pathlib import Path

from rack.settings import HOST_IP, METRICS_PORT
from rack.spawn import spawn

_NAME = "metrics-server"
_NAMESPACE = "kube-system"
_RESOLUTION_S = 10  # the least that it takes; what it says of a pod needs two of these


def start(program: Path, state: Path, logs: Path) -> None:
    """It reads from kubelets every ten seconds, which is what an autoscaler on this rack has to wait for."""
    pki, admin = state / "pki", state / "admin.kubeconfig"
    flags = [
        f"--kubeconfig={admin}",
        f"--authentication-kubeconfig={admin}",
        f"--authorization-kubeconfig={admin}",
        f"--bind-address={HOST_IP}",
        f"--secure-port={METRICS_PORT}",
        f"--tls-cert-file={pki}/metrics.crt",
        f"--tls-private-key-file={pki}/metrics.key",
        "--kubelet-insecure-tls",  # kubelets of the rack sign for themselves
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-request-timeout=3s",  # has to be below the resolution
        f"--metric-resolution={_RESOLUTION_S}s",
    ]
    spawn([program, *flags], group="control", log=logs / "metrics-server.log")


def objects(ca: Path) -> str:
    """What makes the API server ask it, for `kubectl apply`. `ca`: who signed its certificate."""
    meta = {"name": _NAME, "namespace": _NAMESPACE}
    port = {"name": "https", "port": METRICS_PORT, "protocol": "TCP"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {"ports": [{**port, "port": 443, "targetPort": METRICS_PORT}]},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**meta, "labels": {"kubernetes.io/service-name": _NAME}},
        "addressType": "IPv4",
        "ports": [port],
        "endpoints": [{"addresses": [HOST_IP], "conditions": {"ready": True}}],
    }
    api = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.metrics.k8s.io"},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": _NAME, "namespace": _NAMESPACE},
            "caBundle": base64.b64encode(ca.read_bytes()).decode(),
        },
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [service, endpoints, api]})
