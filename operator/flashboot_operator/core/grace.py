"""How long an engine has between SIGTERM and SIGKILL, told to it by a variable: a container can't see it itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

GRACE_VARIABLE: Final = "FLASHBOOT_GRACE_SECONDS"
"""Read by the plug-in (engine/drain.py)."""

DEFAULT_SECONDS: Final = 30
"""Kubernetes' own, of a pod that says nothing."""


def grace_seconds(pod: Mapping[str, Any], engine: Mapping[str, Any]) -> int:
    """Seconds from SIGTERM to SIGKILL, 1 at least: the pod's grace period without what a sleeping preStop hook takes of
    it. What another kind of hook takes can't be known; the template then sets the variable itself."""
    granted = pod.get("terminationGracePeriodSeconds")
    before = ((engine.get("lifecycle") or {}).get("preStop") or {}).get("sleep") or {}
    return max(1, int(DEFAULT_SECONDS if granted is None else granted) - int(before.get("seconds", 0)))


def with_grace(pod: Mapping[str, Any], engine: Mapping[str, Any]) -> list[Any]:
    """The engine's environment with the variable; one that the template sets stays."""
    env = list(engine.get("env") or [])
    if any(entry.get("name") == GRACE_VARIABLE for entry in env):
        return env
    return [*env, {"name": GRACE_VARIABLE, "value": str(grace_seconds(pod, engine))}]
