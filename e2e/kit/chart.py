"""Install FlashBoot the way users do: `helm install`, with the images that the rack built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from kit.agents import SYSTEM
from kit.apiserver import ApiServer
from kit.eventually import NotYet, eventually
from kit.kubectl import run

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "flashboot"
PARTS = ("agent", "holder", "door")


class Helm:
    def __init__(self, binary: Path, kubeconfig: Path) -> None:
        self.binary = binary
        self.kubeconfig = kubeconfig

    def __call__(self, *arguments: str, seconds: float = 120) -> str:
        env = {"KUBECONFIG": str(self.kubeconfig)}
        return run([str(self.binary), *arguments], seconds=seconds, env=env)

    def install(self, values: dict[str, object]) -> None:
        """Install or upgrade the release `flashboot`; returns before its pods are ready."""
        self(
            "upgrade", "--install", "flashboot", str(CHART),
            "--namespace", SYSTEM, "--create-namespace",
            "--set-json", ",".join(f"{key}={json.dumps(value)}" for key, value in values.items()),
        )  # fmt: skip

    def rendered(self, values: dict[str, object]) -> list[dict[str, Any]]:
        """All objects that an installation with these values makes."""
        sets = ",".join(f"{key}={json.dumps(value)}" for key, value in values.items())
        text = self(
            "template", "flashboot", str(CHART), "--namespace", SYSTEM, "--kube-version=1.36.3", "--set-json", sets
        )
        return [document for document in yaml.safe_load_all(text) if document]

    def uninstall(self) -> None:
        self("uninstall", "flashboot", "--namespace", SYSTEM, "--ignore-not-found", "--wait")


def wait_installed(api: ApiServer, seconds: float = 120) -> None:
    """Until the operator is available and every node has a ready agent, holder and door."""

    def all_ready() -> None:
        operator = api.get("deployments", "flashboot-operator", SYSTEM)
        if not operator["status"].get("readyReplicas"):
            raise NotYet("the operator is not ready")
        for part in PARTS:
            status = api.get("daemonsets", f"flashboot-{part}", SYSTEM)["status"]
            ready, wanted = status.get("numberReady", 0), status["desiredNumberScheduled"]
            if ready < wanted or not wanted:
                raise NotYet(f"{ready} of {wanted} {part} pods are ready")

    eventually(all_ready, "FlashBoot's pods to be ready", seconds, every=0.5)
