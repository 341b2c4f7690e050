"""When something failed: everything that helps, into one folder, before the cluster is torn down."""

from __future__ import annotations

from pathlib import Path

from kit.agents import SYSTEM
from kit.errors import CommandFailed, KitError
from kit.kubectl import Kubectl


def collect(kubectl: Kubectl, folder: Path, namespaces: tuple[str, ...]) -> None:
    """Logs (also of the container before), descriptions, events and objects. What can't be had is said in the file."""
    folder.mkdir(parents=True, exist_ok=True)
    _save(kubectl, folder / "nodes.txt", "describe", "nodes")
    _save(kubectl, folder / "modelreplicas.yaml", "get", "modelreplicas", "-A", "-o", "yaml")
    for namespace in (SYSTEM, *namespaces):
        place = folder / namespace
        place.mkdir(exist_ok=True)
        _save(kubectl, place / "events.txt", "get", "events", "-n", namespace, "--sort-by=.lastTimestamp")
        _save(kubectl, place / "describe.txt", "describe", "pods,deployments,daemonsets", "-n", namespace)
        try:
            pods = kubectl.items("pods", "-n", namespace)
        except KitError as failed:
            (place / "pods.txt").write_text(str(failed))
            continue
        for pod in pods:
            name = pod["metadata"]["name"]
            _save(kubectl, place / f"{name}.log", "logs", name, "-n", namespace, "--all-containers", "--tail=2000")
            restarts = sum(status.get("restartCount", 0) for status in pod["status"].get("containerStatuses", ()))
            if restarts:
                before = place / f"{name}.previous.log"
                _save(kubectl, before, "logs", name, "-n", namespace, "--all-containers", "--previous", "--tail=2000")


def _save(kubectl: Kubectl, path: Path, *arguments: str) -> None:
    try:
        path.write_text(kubectl(*arguments, seconds=30))
    except CommandFailed as failed:
        path.write_text(str(failed))
