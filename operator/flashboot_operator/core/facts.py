"""What the operator knows, as plain values: the input of every decision.

Times of the API server and of agents are wall clock and only ever shown or subtracted from one another; whether an
agent is fresh is judged by the adapter on a monotonic clock and arrives here as a flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flashboot_agent.wire.control import Observed, ObservedArena, ObservedPod
from flashboot_agent.wire.door import ATTRIBUTE_MODEL_REPLICA, DRIVER_NAME
from flashboot_operator.api.base import ANNOTATION_ENGINE_HASH, LABEL_MODEL_REPLICA
from flashboot_operator.core.devices import count, devices_of
from flashboot_operator.core.expected import engine_hash, engine_index
from flashboot_operator.core.fanout.pace import Sample
from flashboot_operator.core.membership import LWS_NAME, membership_of
from flashboot_operator.core.reasons import Wrong

GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_CLIQUE = "nvidia.com/gpu.clique"
ANNOTATION_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
NO_DOMAIN = "default"
"""Domain of the nodes that have no clique label."""

LEAVING_TAINTS = frozenset({"node.kubernetes.io/unschedulable", "node.kubernetes.io/out-of-service"})

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
class Restart:
    """An agent's process began anew while this operator knew it."""

    instance: str
    kept: frozenset[str]
    """Arenas that were complete before and are complete still."""
    lost: frozenset[str]
    """Arenas that were complete before and are not any more."""


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
    strays: tuple[Trouble, ...] = ()
    """What is wrong with pods that carry its label and do not count (claims.py)."""
    contested: Trouble | None = None
    """Who fights over the number of replicas (contest.py)."""
    skewed: Mapping[str, str] = field(default_factory=dict)
    """Node → what is wrong with the version of its agent."""
    sets: Mapping[str, Raw] = field(default_factory=dict)
    """The StatefulSets of its replicas, by name, where a replica is a group; those that are going are not in it."""
    missing_agents: Mapping[str, float] = field(default_factory=dict)
    """Node → seconds, for nodes whose agent is silent or was never heard of."""
    unused_since: datetime | None = None
    """Since when no pod is there and none is wanted (residency.py)."""


def believed(agents: Mapping[str, Agent], nodes: Mapping[str, Node]) -> dict[str, Agent]:
    """The agents whose last word counts. One that is silent on a node whose kubelet is silent too went with the node;
    one that is silent on a node that is well is most likely just away, and what it held is there still."""
    return {name: agent for name, agent in agents.items() if agent.fresh or name not in nodes or nodes[name].ready}


def domain_of(world: World, node: str) -> str:
    return world.nodes[node].domain if node in world.nodes else NO_DOMAIN


def time_of(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def node_of(raw: Raw) -> Node:
    labels = raw["metadata"].get("labels") or {}
    info = (raw.get("status") or {}).get("nodeInfo") or {}
    spec = raw.get("spec") or {}
    taints = {taint["key"] for taint in spec.get("taints") or []}
    conditions = (raw.get("status") or {}).get("conditions") or []
    kubelet = next((c["status"] for c in conditions if c["type"] == "Ready"), "True")
    return Node(
        name=raw["metadata"]["name"],
        product=labels.get(GPU_PRODUCT) or "cpu",
        architecture=info.get("architecture") or labels.get("kubernetes.io/arch") or "unknown",
        domain=labels.get(GPU_CLIQUE) or NO_DOMAIN,
        cordoned=bool(spec.get("unschedulable")) or bool(taints & LEAVING_TAINTS),
        ready=kubelet == "True",
        gpus=count((raw.get("status") or {}).get("capacity") or {}) or 0,
    )


def pod_of(raw: Raw) -> Pod:
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or []}
    ready, scheduled = conditions.get("Ready", {}), conditions.get("PodScheduled", {})
    created = time_of(meta["creationTimestamp"])
    assert created is not None
    bound = time_of(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    labels = meta.get("labels") or {}
    member = membership_of(labels)
    return Pod(
        uid=meta["uid"],
        name=meta["name"],
        namespace=meta["namespace"],
        model_replica=labels.get(LABEL_MODEL_REPLICA, ""),
        node=spec.get("nodeName") or None,
        hash=(meta.get("annotations") or {}).get(ANNOTATION_ENGINE_HASH) or engine_hash(spec),
        created=created,
        bound=(bound or created) if spec.get("nodeName") else None,
        ready=ready.get("status") == "True",
        ready_at=time_of(ready.get("lastTransitionTime")) if ready.get("status") == "True" else None,
        going=bool(meta.get("deletionTimestamp")) or status.get("phase") in ("Succeeded", "Failed"),
        started=_started(spec, status),
        deletion_cost=_cost((meta.get("annotations") or {}).get(ANNOTATION_DELETION_COST)),
        trouble=_trouble(meta["name"], spec, status, scheduled),
        volume_of=volume_of(spec),
        made_by=_made_by(meta),
        gpus=devices_of((spec.get("containers") or [{}])[engine_index(spec)]),
        replica=member.replica,
        index=member.index,
        restarts=_restarts(spec, status),
        lws=LWS_NAME in labels,
    )


def volume_of(spec: Raw) -> str | None:
    """The ModelReplica that the pod's FlashBoot volume names."""
    volumes = [volume.get("csi") or {} for volume in spec.get("volumes") or []]
    attributes = [csi.get("volumeAttributes") or {} for csi in volumes if csi.get("driver") == DRIVER_NAME]
    return next((each[ATTRIBUTE_MODEL_REPLICA] for each in attributes if each.get(ATTRIBUTE_MODEL_REPLICA)), None)


def _made_by(meta: Raw) -> str | None:
    owners = [owner for owner in meta.get("ownerReferences") or [] if owner.get("controller")]
    return f"{owners[0]['kind']} {owners[0]['name']}" if owners else None


def _restarts(spec: Raw, status: Raw) -> int:
    containers = spec.get("containers") or []
    name = containers[engine_index(spec)]["name"] if containers else ""
    counts = (c.get("restartCount", 0) for c in status.get("containerStatuses") or [] if c["name"] == name)
    return next(counts, 0)


def _started(spec: Raw, status: Raw) -> datetime | None:
    engine = spec["containers"][engine_index(spec)]["name"]
    found: Raw = next((c for c in status.get("containerStatuses") or [] if c["name"] == engine), {})
    return time_of(((found.get("state") or {}).get("running") or {}).get("startedAt"))


def _cost(text: str | None) -> int:
    """Kubernetes takes what is no number for 0, too."""
    try:
        return int(text or 0)
    except ValueError:
        return 0


IMAGE_REASONS = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
IMAGE_STEP = "correct the image's name in spec.template, or its imagePullSecrets"
NODE_STEP = "add a node that fits, make room, or ask for less in spec.template"
CREATE_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}


def _trouble(name: str, spec: Raw, status: Raw, scheduled: Raw) -> Trouble | None:
    """The first thing that kubelet or the scheduler holds against the pod."""
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Trouble("PodUnschedulable", f"pod {name}: {scheduled.get('message', 'no node takes it')}; {NODE_STEP}")
    if status.get("phase") == "Failed":
        return Trouble(
            "PodFailed", f"pod {name}: {status.get('reason', 'failed')}: {status.get('message', 'no message')}"
        )
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "no message")
        where = f"pod {name}: container {container['name']} on {spec.get('nodeName')}"
        if reason in IMAGE_REASONS:
            return Trouble("ImagePullFailed", f"{where}: {reason}: {message}; {IMAGE_STEP}")
        if reason in CREATE_REASONS:
            return Trouble("ContainerNotCreated", f"{where}: {reason}: {message}; correct spec.template")
        if reason == "CrashLoopBackOff":
            ended = (container.get("lastState") or {}).get("terminated") or {}
            why = f"exit code {ended.get('exitCode')}, {ended.get('reason', 'no reason')}"
            return Trouble(
                "EngineCrashing",
                f"{where} ended {container.get('restartCount', 0)} times, last with {why}; "
                f"see kubectl logs --previous {name}",
            )
    return None
