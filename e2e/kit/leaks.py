"""What must be gone when the last ModelReplica is: arenas, memory in the holders, mappings in any process, pods."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flashboot_agent.wire.observed import Observed
from kit.agents import SYSTEM
from kit.apiserver import ApiServer
from kit.errors import CommandFailed
from kit.eventually import NotYet, eventually
from kit.world import NAMESPACE, World

MEMORY_NAME = "memfd:flashboot-arena-"


def wait_nothing_left(world: World, seconds: float = 90) -> None:
    """Until no agent knows an arena or a pod, no holder holds a byte, no process maps one, no engine pod is there."""

    def agents_empty(seen: dict[str, Observed]) -> None:
        left = [f"{node}: {arena.arena} {arena.state}" for node, state in seen.items() for arena in state.arenas]
        left += [f"{node}: pod {pod.name}" for node, state in seen.items() for pod in state.pods]
        if left:
            raise NotYet("; ".join(left))

    eventually(lambda: _no_pods(world.api), "all engine pods to be gone", seconds)
    world.eventually_observed("agents without arenas and pods", seconds, agents_empty)
    eventually(lambda: _holders_empty(world), "holders without memory", seconds)
    eventually(_no_mappings, "no mapping of an arena in any process", seconds)


def _no_pods(api: ApiServer) -> None:
    pods = api.items("pods", NAMESPACE)
    if pods:
        raise NotYet(", ".join(pod["metadata"]["name"] for pod in pods))


def _holders_empty(world: World) -> None:
    for pod in world.api.items("pods", SYSTEM, labels="app.kubernetes.io/name=flashboot-holder"):
        name = pod["metadata"]["name"]
        try:
            stats = json.loads(world.kubectl("exec", name, "-n", SYSTEM, "--", "flashboot-holder", "healthcheck"))
        except CommandFailed as failed:
            raise NotYet(str(failed)) from failed
        if stats["used_bytes"] or stats["arenas"]:
            raise NotYet(f"{name} holds {stats}")


def _no_mappings() -> None:
    """All processes of the rack are visible from here, containers included, and each has the network of a node: whoever
    has this one's is none of the rack's."""
    here = os.readlink("/proc/self/ns/net")
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text, network = maps.read_text(), os.readlink(maps.with_name("ns") / "net")
        except OSError:  # it ended meanwhile
            continue
        if MEMORY_NAME in text and network != here:
            raise NotYet(f"process {maps.parent.name} maps an arena")
