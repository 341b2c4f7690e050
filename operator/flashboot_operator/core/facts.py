"""What the operator knows, as plain values: the input of every decision.

Times of the API server and of agents are wall clock and only ever shown or subtracted from one another; whether an
agent is fresh is judged by the adapter on a monotonic clock and arrives here as a flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_operator.core.fanout.pace import Sample
from flashboot_operator.core.reasons import Wrong

GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_CLIQUE = "nvidia.com/gpu.clique"
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
NO_DOMAIN = "default"
"""Domain of the nodes that have no clique label."""


Raw = Mapping[str, Any]

Key = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""


@dataclass(frozen=True)
class Trouble:
    """Something that is wrong: a reason of docs/reference/conditions.md and words for people."""

    reason: Wrong
    message: str


@dataclass(frozen=True)
class Node:
    name: str
    product: str = "cpu"
    architecture: str = "amd64"
    domain: str = NO_DOMAIN
    cordoned: bool = False
    """It is about to be drained: marked unschedulable, or tainted as going out of service."""
    ready: bool = True
    """Its kubelet answers, as far as Kubernetes knows."""
    gpus: int = 0
    """That it has in all, free or not."""


@dataclass(frozen=True)
class Pod:
    """A pod that carries our label."""

    uid: str
    name: str
    namespace: str
    model_replica: str
    node: str | None
    hash: str
    """Hash of what matters in the engine's container."""
    created: datetime
    bound: datetime | None = None
    ready: bool = False
    ready_at: datetime | None = None
    going: bool = False
    """Terminating, or ended for good."""
    started: datetime | None = None
    """When its engine's container started; None while it does not run."""
    deletion_cost: int = 0
    """As its annotation says."""
    trouble: Trouble | None = None
    """What kubelet or the scheduler says is wrong with it."""
    replica: str = ""
    """What it has in common with the other pods of its replica; empty while a replica is one pod."""
    index: int = 0
    """Which of its replica's pods it is."""
    volume_of: str | None = None
    """The ModelReplica that its FlashBoot volume names; None without such a volume."""
    made_by: str | None = None
    """Kind and name of its controller, as in `ReplicaSet m-5d8f7c`."""
    gpus: int | None = None
    """That its engine asks for."""
    restarts: int = 0
    """How often its engine's container was started again."""
    lws: bool = False
    """A LeaderWorkerSet made it."""

    @property
    def live(self) -> bool:
        return self.node is not None and not self.going

    def made_by_template_of(self, name: str) -> bool:
        """Whether its controller is one of those that a ModelReplica's workload has: a ReplicaSet of the Deployment of
        this name, or a StatefulSet of a replica."""
        kind, _, controller = (self.made_by or "").partition(" ")
        return kind in ("ReplicaSet", "StatefulSet") and controller.rpartition("-")[0] == name


@dataclass(frozen=True)
class Stray:
    """A pod that two claim, and that counts for neither."""

    pod: Pod
    trouble: Trouble


@dataclass(frozen=True)
class Restart:
    """An agent's process began anew while this operator knew it."""

    instance: str
    kept: frozenset[str]
    """Arenas that were complete before and are complete still."""
    lost: frozenset[str]
    """Arenas that were complete before and are not any more."""


def restart_of(before: Observed, after: Observed) -> Restart:
    was, now = ({a.arena for a in seen.arenas if a.state == "sealed"} for seen in (before, after))
    return Restart(after.instance, frozenset(was & now), frozenset(was - now))


@dataclass(frozen=True)
class Agent:
    """A node's agent, as it was last heard."""

    node: str
    observed: Observed
    fresh: bool = True
    """It answers now."""
    silent_s: float = 0.0
    """Seconds since it stopped answering; 0 when fresh."""
    accused: frozenset[tuple[str, str]] = frozenset()
    """(arena, parent) pairs that this node has accused within the last while."""
    put_revision: int = -1
    """Revision of the desired state that it was last told, -1 for none."""
    put_parents: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    """arena → parent of each lane in that state."""
    put_seeds: Mapping[str, str] = field(default_factory=dict)
    """arena → seed pod in that state."""
    ordered_s: Mapping[str, float] = field(default_factory=dict)
    """arena → for how long it has known a parent to pull it from."""
    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    """arena that fills → what was said of it over the last seconds."""
    restart: Restart | None = None
    """The last one."""

    def arena(self, arena: str) -> ObservedArena | None:
        return next((a for a in self.observed.arenas if a.arena == arena), None)

    def pod(self, uid: str) -> ObservedPod | None:
        return next((p for p in self.observed.pods if p.uid == uid), None)


@dataclass(frozen=True)
class World:
    """All that concerns one ModelReplica."""

    nodes: Mapping[str, Node]
    pods: tuple[Pod, ...]
    agents: Mapping[str, Agent]
    """By node; those that have been silent for too long to be believed are not in it."""
    now: datetime
    deployment: Raw | None = None
    strays: tuple[Stray, ...] = ()
    """Pods that carry its label and do not count (claims.py)."""
    contested: Trouble | None = None
    """Who fights over the number of replicas (contest.py)."""
    skewed: Mapping[str, str] = field(default_factory=dict)
    """Node → what is wrong with the version of its agent."""
    sets: Mapping[str, Raw] = field(default_factory=dict)
    """The StatefulSets of its replicas, by name, where a replica is a group; those that are going are not in it."""
    running_s: Mapping[str, float] = field(default_factory=dict)
    """UID of a pod → for how long its engine's container has been running."""
    missing_agents: Mapping[str, float] = field(default_factory=dict)
    """Node → seconds, for nodes whose agent is silent or was never heard of."""
    unused_since: datetime | None = None
    """Since when no pod is there and none is wanted (residency.py)."""


def believed(agents: Mapping[str, Agent], nodes: Mapping[str, Node]) -> dict[str, Agent]:
    """The agents whose last word counts. One that is silent on a node that was deleted, or whose kubelet is silent too,
    went with the node; one that is silent on a node that is well is most likely just away, and what it held is there
    still."""
    return {name: agent for name, agent in agents.items() if agent.fresh or (name in nodes and nodes[name].ready)}


def domain_of(world: World, node: str) -> str:
    return world.nodes[node].domain if node in world.nodes else NO_DOMAIN


def time_of(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None
