"""ModelReplicas whose engine is light_engine.py, for stories that need many pods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kit.world import NAMESPACE, World

PORT = 8000
CONFIG_MAP = "light-engine"
SECONDS = 90
"""From a pod's creation to Ready, with a dozen others beside it on two cores."""


def prepare(world: World) -> None:
    """The engine's program, where pods can mount it."""
    source = Path(__file__).with_name("light_engine.py").read_text()
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE},
        "data": {"light_engine.py": source},
    }
    world.kubectl.apply(json.dumps(document))


def pod_spec(arguments: Sequence[str] = ()) -> dict[str, Any]:
    """The pod of a light engine, without what FlashBoot adds."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "engine",
                "image": "docker.io/flashboot/engine-cpu:dev",
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "/program/light_engine.py"],
                "args": [f"--port={PORT}", *arguments],
                "env": [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "HOME", "value": "/tmp"}],
                "ports": [{"name": "http", "containerPort": PORT}],
                "readinessProbe": {
                    "httpGet": {"path": "/ready", "port": PORT},
                    "periodSeconds": 1,
                    "timeoutSeconds": 5,
                },
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
                "volumeMounts": [
                    {"name": "program", "mountPath": "/program", "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            {"name": "program", "configMap": {"name": CONFIG_MAP}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }


def manifest(
    name: str,
    replicas: int | None = 1,
    *,
    revision: str = "one",
    arguments: Sequence[str] = (),
    one_per_node: bool = False,
) -> dict[str, Any]:
    """A ModelReplica of light engines. None leaves `replicas` out, as under an autoscaler."""
    spec: dict[str, Any] = {
        "model": {"name": f"light/{name}", "revision": revision},
        "template": {"metadata": {"labels": {"app": name}}, "spec": pod_spec(arguments)},
    }
    if one_per_node:
        spec["template"]["spec"]["topologySpreadConstraints"] = [
            {
                "topologyKey": "kubernetes.io/hostname",
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": name}},
            }
        ]
    if replicas is not None:
        spec["replicas"] = replicas
    return {
        "apiVersion": "flashboot.io/v1alpha1",
        "kind": "ModelReplica",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


def sums(world: World, pods: Sequence[str]) -> set[int]:
    """What the weights of these pods add up to; one value when all serve the same bytes."""
    return {int(world.api.pod(NAMESPACE, pod, PORT, "/sum")["sum"]) for pod in pods}
