"""A real Kubernetes cluster on one Linux machine: four nodes in namespaces, no Docker, no registry.

Standard library only. See docs/rack.md for its use and docs/design/0001-a-real-cluster-without-docker.md for why.
"""

from rack.cluster import (
    boot_node,
    down,
    is_up,
    kill_node,
    kubectl,
    node_names,
    set_link,
    set_rate,
    up,
    wait_ready,
)
from rack.errors import RackError
from rack.node import enter, pid_of
from rack.settings import BIN, KUBECONFIG, LOGS, MODELS
from rack.teardown import leftovers

__all__ = [
    "BIN",
    "KUBECONFIG",
    "LOGS",
    "MODELS",
    "RackError",
    "boot_node",
    "down",
    "enter",
    "is_up",
    "kill_node",
    "kubectl",
    "leftovers",
    "node_names",
    "pid_of",
    "set_link",
    "set_rate",
    "up",
    "wait_ready",
]
