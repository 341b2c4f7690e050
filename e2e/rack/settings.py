"""The fixed names and numbers of the rack, in one place.

They are fixed so that `down` finds everything without a state file, after whatever crash. The price is one rack per
machine, which lock.py holds.
"""

from pathlib import Path

from setup_env.images import TAGS

REPO = Path(__file__).resolve().parents[2]
RACK_DIR = REPO / "build" / "rack"
KUBECONFIG = RACK_DIR / "kubeconfig"
BIN = RACK_DIR / "bin"
LOGS = RACK_DIR / "logs"  # outlives `down`, so that a failed run can be read
MODELS = RACK_DIR / "models"  # outlives `down` too; /srv/models on every node
STATE = RACK_DIR / "state"  # `down` removes it

CGROUP = "flashboot-rack"
NFT_TABLE = "flashboot_rack"
BRIDGE = "fbrack0"
VETH_PREFIX = "fbrackv"

# 10.77.0.1 is the host's end of the bridge, where the API server listens; node N has 10.77.0.(10+N).
NODE_NET = "10.77.0"
NODE_RANGE = f"{NODE_NET}.0/24"
POD_RANGE = "10.244.0.0/16"  # node N has 10.244.N.0/24
SERVICE_RANGE = "10.96.0.0/16"
HOST_IP = f"{NODE_NET}.1"
API_SERVICE_IP = "10.96.0.1"
API_PORT = 16443
API_URL = f"https://{HOST_IP}:{API_PORT}"
ETCD_PORT, ETCD_PEER_PORT = 23790, 23800
METRICS_PORT = 16444
METRICS_NAME = "metrics-server.kube-system.svc"  # whom the API server expects behind metrics.k8s.io

MAX_NODES = 16
DEFAULT_NODES = 4
DEFAULT_LINK_MBIT = 1000
CLIQUE_LABEL = "nvidia.com/gpu.clique"
CLIQUE = "rack-0.0"

PAUSE_IMAGE = TAGS["pause"]


def node_name(number: int) -> str:
    """node-1, node-2, …"""
    return f"node-{number}"


def node_number(name: str) -> int:
    """The number in a node's name; ValueError when it is not one."""
    prefix, _, digits = name.partition("-")
    if prefix != "node" or not digits.isdigit() or not 1 <= int(digits) <= MAX_NODES:
        raise ValueError(f"not a node of the rack: {name!r} (they are called node-1, node-2, …)")
    return int(digits)


def node_ip(number: int) -> str:
    """The node's address on the bridge."""
    return f"{NODE_NET}.{10 + number}"


def pod_range(number: int) -> str:
    """The node's slice of the pod range."""
    return f"10.244.{number}.0/24"
