"""The control plane: etcd, API server, controller manager and scheduler as plain processes of the host."""

import http.client
import json
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

from rack.errors import RackError
from rack.settings import API_PORT, API_URL, ETCD_PEER_PORT, ETCD_PORT, HOST_IP, SERVICE_RANGE
from rack.spawn import spawn

_ISSUER = "https://kubernetes.default.svc.cluster.local"
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "users": ["system:apiserver"]}, {"level": "Metadata"}],
}


def start_etcd(program: Path, state: Path, logs: Path, keep_fds: Sequence[int]) -> None:
    """Without fsync: a rack does not outlive the machine's uptime."""
    client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PEER_PORT}"
    flags = ["--name=rack", f"--data-dir={state / 'etcd'}", "--unsafe-no-fsync=true", "--log-level=warn"]
    flags += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
    flags += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=rack={peer}"]
    spawn([program, *flags], group="control", log=logs / "etcd.log", keep_fds=keep_fds)


def start_api_server(program: Path, state: Path, logs: Path) -> None:
    """On the bridge's address, with the node authorizer and RBAC, aggregation, and an audit log."""
    pki = state / "pki"
    policy = state / "audit-policy.json"
    policy.write_text(json.dumps(_AUDIT_POLICY))
    flags = [
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--bind-address={HOST_IP}",
        f"--secure-port={API_PORT}",
        f"--advertise-address={HOST_IP}",
        f"--cert-dir={state / 'api-certs'}",
        f"--tls-cert-file={pki}/api.crt",
        f"--tls-private-key-file={pki}/api.key",
        f"--client-ca-file={pki}/ca.crt",
        f"--token-auth-file={state}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--service-account-issuer={_ISSUER}",
        f"--api-audiences={_ISSUER}",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        "--enable-aggregator-routing=true",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={logs / 'audit.log'}",
        "--audit-log-mode=batch",
        "--audit-log-maxsize=200",
        "--audit-log-maxbackup=1",
    ]
    spawn([program, *flags], group="control", log=logs / "kube-apiserver.log")


def start_controllers(manager: Path, scheduler: Path, state: Path, logs: Path) -> None:
    """Quick to act: a dead node is noticed after 8 s, and client-side rate limits are out of the way."""
    pki, admin = state / "pki", state / "admin.kubeconfig"
    quick = ["--leader-elect=false", "--kube-api-qps=300", "--kube-api-burst=600", "--bind-address=127.0.0.1"]
    flags = [
        f"--kubeconfig={admin}",
        "--secure-port=10257",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials=true",
        "--node-monitor-grace-period=8s",
        "--node-monitor-period=1s",
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
        "--horizontal-pod-autoscaler-cpu-initialization-period=5s",
        "--concurrent-deployment-syncs=10",
        "--concurrent-replicaset-syncs=10",
    ]
    spawn([manager, *quick, *flags], group="control", log=logs / "kube-controller-manager.log")
    flags = [f"--kubeconfig={admin}", "--secure-port=10259"]
    spawn([scheduler, *quick, *flags], group="control", log=logs / "kube-scheduler.log")


def wait_api_ready(state: Path, logs: Path, token: str, timeout_s: float = 60) -> None:
    """Until /readyz says so; RackError that names the log after timeout_s."""
    context = ssl.create_default_context(cafile=str(state / "pki" / "ca.crt"))
    deadline = time.monotonic() + timeout_s
    last = "no answer"
    while time.monotonic() < deadline:
        connection = http.client.HTTPSConnection(HOST_IP, API_PORT, timeout=2, context=context)
        try:
            connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            if answer.status == 200:
                return
            last = f"HTTP {answer.status}: {answer.read(200)!r}"
        except (OSError, http.client.HTTPException) as e:
            last = str(e)
        finally:
            connection.close()
        time.sleep(0.1)
    raise RackError(f"{API_URL} is not ready after {timeout_s:.0f} s ({last}); see {logs / 'kube-apiserver.log'}")
