"""The cluster as the stories speak of it: ModelReplicas, their pods and arenas, waits that say on what."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_arena import ObservedArena
from kit import agents
from kit.apiserver import ApiServer
from kit.errors import KitError
from kit.eventually import NotYet, eventually
from kit.kubectl import Kubectl

NAMESPACE = "e2e"
AWAY_LABEL = "e2e.flashboot.io/away"
"""On a node: the part of FlashBoot (agent or door) that is not to run there for now."""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "modelreplica.yaml"
ENGINE_SECONDS = 300
"""Engines that start together share two cores: about 30 s for one, 100 s for three."""


def manifest(name: str, model_path: str, replicas: int | None = 1) -> dict[str, Any]:
    """The example with another name and checkpoint; the very same engine."""
    documents = yaml.safe_load_all(EXAMPLE.read_text())
    made: dict[str, Any] = copy.deepcopy(next(d for d in documents if d["kind"] == "ModelReplica"))
    made["metadata"] = {"name": name, "namespace": NAMESPACE}
    made["spec"]["replicas"] = replicas
    template = made["spec"]["template"]
    template["metadata"]["labels"] = {"app": name}
    template["spec"]["topologySpreadConstraints"][0]["labelSelector"] = {"matchLabels": {"app": name}}
    engine = template["spec"]["containers"][0]
    engine["args"] = [f"--model-path={model_path}" if a.startswith("--model-path=") else a for a in engine["args"]]
    return made


@dataclass
class World:
    kubectl: Kubectl
    api: ApiServer

    def apply(self, document: dict[str, Any]) -> None:
        self.kubectl.apply(json.dumps(document))

    def observed(self) -> dict[str, Observed]:
        """Node → what its agent sees now."""
        return agents.observed(self.api)

    def nodes(self) -> list[str]:
        return sorted(node["metadata"]["name"] for node in self.api.items("nodes", None))

    def eventually_observed(self, what: str, seconds: float, holds: Callable[[dict[str, Observed]], None]) -> None:
        """Until `holds` does not raise NotYet for what the agents see; an agent that can't be asked is not yet."""

        def probe() -> None:
            try:
                seen = self.observed()
            except KitError as away:
                raise NotYet(str(away)) from away
            holds(seen)

        eventually(probe, what, seconds)


@dataclass
class Mrep:
    """One ModelReplica object."""

    world: World
    name: str
    uid: str = ""

    @classmethod
    def create(cls, world: World, document: dict[str, Any]) -> Mrep:
        world.apply(document)
        mrep = cls(world, document["metadata"]["name"])
        mrep.uid = mrep.get()["metadata"]["uid"]
        return mrep

    def get(self) -> dict[str, Any]:
        return self.world.api.get("modelreplicas", self.name, NAMESPACE)

    def condition(self, kind: str) -> dict[str, Any]:
        """The condition for the present generation. Raises NotYet."""
        mrep = self.get()
        generation = mrep["metadata"]["generation"]
        for condition in mrep.get("status", {}).get("conditions", ()):
            if condition["type"] == kind and condition.get("observedGeneration") == generation:
                found: dict[str, Any] = condition
                return found
        raise NotYet(f"{self.name} has no condition {kind} for generation {generation}")

    def scale(self, replicas: int) -> None:
        self.world.kubectl("scale", f"modelreplica/{self.name}", "-n", NAMESPACE, f"--replicas={replicas}")

    def wait_ready(self, replicas: int, seconds: float = ENGINE_SECONDS) -> None:
        """Until all replicas are Ready, by the object's own word and by the pods'."""

        def probe() -> None:
            ready = self.condition("Ready")
            status = self.get()["status"]
            if ready["status"] != "True" or status.get("readyReplicas") != replicas:
                raise NotYet(f"{status.get('readyReplicas')} ready; {ready['reason']}: {ready['message']}")
            pods = len(self.pods())
            if pods != replicas * self.get()["spec"]["group"]["size"]:
                raise NotYet(f"{pods} pods")

        eventually(probe, f"{self.name} to have {replicas} ready replicas", seconds, every=0.5)

    def pods(self) -> list[dict[str, Any]]:
        """Pods that are not on their way out."""
        found = self.world.api.items("pods", NAMESPACE, labels=f"flashboot.io/model-replica={self.name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod_on(self, node: str) -> dict[str, Any]:
        """The pod that is bound to a node. Raises NotYet."""
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node:
                return pod
        raise NotYet(f"no pod of {self.name} is bound to {node}")

    def arenas(self, seen: dict[str, Observed] | None = None) -> dict[str, ObservedArena]:
        """Node → arena of this object."""
        return agents.arenas_of(self.world.observed() if seen is None else seen, self.uid)

    def ranks(self) -> dict[str, dict[str, ObservedArena]]:
        """Node → rank → arena of this object."""
        return agents.ranks_of(self.world.observed(), self.uid)

    def wait_arenas(self, nodes: set[str], seconds: float = 60, *, held: int = 0) -> None:
        """Until these nodes have an arena of this object, all of them sealed, and at most `held` others: the operator
        may keep the source where no pod is left."""

        def holds(seen: dict[str, Observed]) -> None:
            states = {node: arena.state for node, arena in self.arenas(seen).items()}
            others = states.keys() - nodes
            if set(states.values()) != {"sealed"} or not nodes <= states.keys() or len(others) > held:
                raise NotYet(f"arenas: {states}")

        self.world.eventually_observed(f"sealed arenas of {self.name} on {sorted(nodes)}", seconds, holds)

    def delete(self) -> None:
        self.world.kubectl("delete", "modelreplica", self.name, "-n", NAMESPACE, "--wait=true", seconds=60)


def restarts(pod: dict[str, Any]) -> int:
    return sum(status.get("restartCount", 0) for status in pod["status"].get("containerStatuses", ()))
