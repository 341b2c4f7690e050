"""Figures of real nodes, when a rack is up that has scaled something: the operator's own log tells them.

There the binding is not ours, and its time is known to the second only, so the watch's stage is left out.
"""

from __future__ import annotations

import json
import subprocess

from bench.kit.machine import REPO
from bench.kit.say import say
from kit import tools
from kit.errors import KitError

KUBECONFIG = REPO / "build" / "rack" / "kubeconfig"
ASK = ["-n", "flashboot-system", "logs", "deployment/flashboot-operator", "--tail=-1", "--request-timeout=20s"]


def real() -> dict[str, dict[str, list[float]]]:
    if not KUBECONFIG.exists():
        say("no rack is up, real nodes are left out: make rack-up, install, scale something, and run this again")
        return {}
    try:
        kubectl = tools.find("kubectl")
        command = [str(kubectl), f"--kubeconfig={KUBECONFIG}", *ASK]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (KitError, OSError, subprocess.SubprocessError) as error:
        say(f"real nodes are left out: {error}")
        return {}
    found: dict[str, list[float]] = {}
    for line in said.splitlines():
        told = json.loads(line) if line.startswith("{") else {}
        if told.get("event") == "agent told of a pod":
            for stage in ("queue", "plan", "put", "whole"):
                found.setdefault(stage, []).append(told[f"{stage}Ms"])
    return {"real nodes, from seen on": found} if found else {}
