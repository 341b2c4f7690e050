"""The agents of a cluster and what they observe, read by their own HTTP interface (wire/control.py)."""

from __future__ import annotations

from dataclasses import dataclass

from flashboot_agent.wire.control import Observed, ObservedArena
from kit.apiserver import ApiServer
from kit.kubectl import Kubectl

SYSTEM = "flashboot-system"
CONTROL_PORT = 9440


@dataclass(frozen=True)
class Agent:
    """One agent pod on one node."""

    node: str
    pod: str
    uid: str

    def observed(self, api: ApiServer, *, after: int = -1, wait_seconds: int = 0) -> Observed:
        """All that the node knows; with `after`, as soon as its counter is above it, or at the deadline."""
        path = f"/v1/observed?after={after}&waitSeconds={wait_seconds}" if after >= 0 else "/v1/observed"
        answer = api.pod(SYSTEM, self.pod, CONTROL_PORT, path, seconds=10 + wait_seconds)
        return Observed.model_validate(answer)


def agents(kubectl: Kubectl) -> dict[str, Agent]:
    """Node → its agent, for agents that run and are not on their way out."""
    found = {}
    for pod in kubectl.items("pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=flashboot-agent"):
        running = pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
        if running:
            node = pod["spec"]["nodeName"]
            found[node] = Agent(node, pod["metadata"]["name"], pod["metadata"]["uid"])
    return found


def observed(kubectl: Kubectl, api: ApiServer) -> dict[str, Observed]:
    """Node → what its agent observes now."""
    return {node: agent.observed(api) for node, agent in agents(kubectl).items()}


def arenas_of(seen: dict[str, Observed], model_replica_uid: str) -> dict[str, ObservedArena]:
    """Node → its arena of one ModelReplica object."""
    return {
        node: arena
        for node, state in seen.items()
        for arena in state.arenas
        if arena.model_replica_uid == model_replica_uid
    }
