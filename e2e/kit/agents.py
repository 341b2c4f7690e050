"""The agents of a cluster, and what they observe. Agents answer nobody but the operator, so the operator is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_arena import ObservedArena
from kit.apiserver import ApiServer
from kit.errors import KitError

SYSTEM = "flashboot-system"
OPERATOR_PORT = 9442
SILENT_SECONDS = 0.5
"""An agent that has been silent for longer counts as one that can't be asked; its long poll may just be under way."""


@dataclass(frozen=True)
class Agent:
    """One agent pod on one node."""

    node: str
    pod: str
    uid: str


def agents(api: ApiServer) -> dict[str, Agent]:
    """Node → its agent, for agents that run and are not on their way out."""
    return {
        pod["spec"]["nodeName"]: Agent(pod["spec"]["nodeName"], pod["metadata"]["name"], pod["metadata"]["uid"])
        for pod in _running(api, "flashboot-agent")
    }


def observed(api: ApiServer) -> dict[str, Observed]:
    """Node → what its agent said last, for agents that answer the operator now.

    Raises KitError when there is no operator to ask."""
    return Operators(api).observed()


class Operators:
    """Asks the operator again and again, and looks for its pod anew only when it does not answer. For one thread."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._pod: str | None = None

    def observed(self) -> dict[str, Observed]:
        """As the function of this name."""
        if self._pod is None:
            pods = _running(self._api, "flashboot-operator")
            if not pods:
                raise KitError("no operator runs that could be asked about the agents")
            self._pod = pods[0]["metadata"]["name"]
        try:
            answer = self._api.pod(SYSTEM, self._pod, OPERATOR_PORT, "/v1/nodes")
        except KitError:
            self._pod = None
            raise
        return {
            item["node"]: Observed.model_validate(item["observed"])
            for item in answer["items"]
            if item["silentSeconds"] <= SILENT_SECONDS
        }


def arenas_of(seen: dict[str, Observed], model_replica_uid: str) -> dict[str, ObservedArena]:
    """Node → its arena of one ModelReplica object whose replicas have one rank."""
    return {
        node: arena
        for node, state in seen.items()
        for arena in state.arenas
        if arena.model_replica_uid == model_replica_uid
    }


def ranks_of(seen: dict[str, Observed], model_replica_uid: str) -> dict[str, dict[str, ObservedArena]]:
    """Node → rank (as in `tp1`) → its arena of one ModelReplica object."""
    found: dict[str, dict[str, ObservedArena]] = {}
    for node, state in seen.items():
        for arena in state.arenas:
            if arena.model_replica_uid == model_replica_uid:
                found.setdefault(node, {})[str(arena.place)] = arena
    return found


def _running(api: ApiServer, name: str) -> list[dict[str, Any]]:
    pods = api.items("pods", SYSTEM, labels=f"app.kubernetes.io/name={name}")
    return [p for p in pods if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]]
