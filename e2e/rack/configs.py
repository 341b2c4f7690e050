"""The configuration files of a node's programs, as pure text."""

import base64
import json
from pathlib import Path

from rack.settings import API_URL, PAUSE_IMAGE, POD_RANGE, pod_range


def kubeconfig(ca: Path, token: str, user: str) -> str:
    """A kubeconfig that carries everything in itself, so that it works from wherever it is copied to."""
    ca_data = base64.b64encode(ca.read_bytes()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rack",
        "clusters": [{"name": "rack", "cluster": {"server": API_URL, "certificate-authority-data": ca_data}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "rack", "context": {"cluster": "rack", "user": user}}],
    }
    return json.dumps(document, indent=2) + "\n"


def containerd() -> str:
    """No AppArmor profile loader and no OOM score of its own: both need more than a namespace gives."""
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
"""


def cni(number: int) -> str:
    """One bridge per node with the node's slice of the pod range; nodes route to each other, without masquerading."""
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": pod_range(number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "rack", "plugins": [bridge, portmap]}, indent=2)


def kubelet(client_ca: Path, node_dir: Path) -> str:
    """Quick to notice (lease 8 s, status 2 s), no image collection, no eviction: the disk is not the node's own.

    There is no cluster DNS: pods get a resolver that refuses at once instead of one that lets them wait.
    """
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(client_ca)},
            },
            "authorization": {"mode": "Webhook"},
            "failSwapOn": False,
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "evictionHard": {},
            "localStorageCapacityIsolation": False,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "resolvConf": str(node_dir / "resolv.conf"),
            "clusterDNS": ["127.0.0.1"],
            "clusterDomain": "cluster.local",
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "syncFrequency": "10s",
            "serializeImagePulls": False,
            "volumePluginDir": str(node_dir / "volume-plugins"),
        },
        indent=2,
    )


def kube_proxy(kubeconfig_file: Path) -> str:
    """nftables, and no connection-tracking limits: those belong to the machine, not to a node of ours."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(kubeconfig_file)},
            "clusterCIDR": POD_RANGE,
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        },
        indent=2,
    )
