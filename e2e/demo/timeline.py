"""The life of each replica in five moments, from what Kubernetes and the agents wrote down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from demo.live import NodeView
from flashboot_agent.wire.base import rfc3339
from flashboot_agent.wire.observed_arena import Path
from flashboot_agent.wire.observed_pod import StartupTimes
from kit.errors import KitError


@dataclass(frozen=True)
class Replica:
    pod: str
    node: str
    bound: datetime
    """When the scheduler chose the node. Kubernetes keeps whole seconds, as for `ready`."""
    clone_started: datetime
    """First byte asked for; for the seed, when it began to load."""
    clone_done: datetime
    """Sealed: every byte verified."""
    asked_to_attach: datetime
    """The engine's first word to its agent: Python is imported, the model is wanted."""
    engine_attached: datetime
    ready: datetime
    path: str
    digest: str
    bytes: int
    bytes_out: int
    parent: str | None
    transport: str | None
    transport_reason: str | None
    refetched_chunks: int
    paths: Sequence[Path] = ()
    """Bytes that came from each peer, and how."""
    startup: StartupTimes | None = None
    """What the engine did meanwhile; None: it has not told."""

    @property
    def early(self) -> bool:
        """The weights were complete before the engine asked for them."""
        return self.clone_done <= self.asked_to_attach

    @property
    def clone_seconds(self) -> float:
        return (self.clone_done - self.clone_started).total_seconds()

    def json(self) -> dict[str, object]:
        times = ("bound", "clone_started", "clone_done", "asked_to_attach", "engine_attached", "ready")
        others = ("path", "digest", "bytes", "bytes_out", "parent", "transport", "transport_reason", "refetched_chunks")
        return {
            "pod": self.pod,
            "node": self.node,
            **{name: rfc3339(getattr(self, name)) for name in times},
            **{name: getattr(self, name) for name in others},
            "paths": [path.model_dump(by_alias=True) for path in self.paths],
            "sealed_before_asked": self.early,
            "clone_seconds": round(self.clone_seconds, 3),
            "startup": self.startup.model_dump() if self.startup else None,
        }


def condition_time(pod: dict[str, Any], kind: str) -> datetime:
    """When a pod's condition became True. Raises KitError when it is not."""
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == kind and condition["status"] == "True":
            return datetime.fromisoformat(condition["lastTransitionTime"])
    raise KitError(f"pod {pod['metadata']['name']} has no condition {kind}=True")


def replicas(pods: Sequence[dict[str, Any]], views: Sequence[NodeView]) -> list[Replica]:
    """One record per pod, the earliest first. Raises KitError that names what is missing where."""
    by_uid = {view.pod.uid: view for view in views if view.pod is not None}
    found = []
    for pod in pods:
        name = pod["metadata"]["name"]
        view = by_uid.get(pod["metadata"]["uid"])
        if view is None or view.pod is None or view.arena is None:
            raise KitError(f"no agent knows pod {name} together with its arena")
        arena = view.arena
        moments = {
            "clone_started": arena.started_at,
            "clone_done": arena.sealed_at,
            "asked_to_attach": view.pod.hello_at,
            "engine_attached": view.pod.attached_at,
        }
        known = {key: value for key, value in moments.items() if value is not None}
        if len(known) < len(moments) or arena.digest is None:
            lacks = sorted(moments.keys() - known.keys()) or ["digest"]
            raise KitError(f"the agent of {view.node} does not tell {', '.join(lacks)} of pod {name}")
        found.append(
            Replica(
                pod=name,
                node=view.node,
                bound=condition_time(pod, "PodScheduled"),
                ready=condition_time(pod, "Ready"),
                path=next((rank.way for rank in view.pod.ranks if rank.way), arena.way),
                digest=arena.digest,
                bytes=arena.bytes,
                bytes_out=arena.bytes_out,
                parent=arena.parent,
                transport=arena.transport,
                transport_reason=arena.transport_reason,
                refetched_chunks=arena.refetched_chunks,
                paths=arena.paths,
                startup=view.pod.startup,
                **known,
            )
        )
    return sorted(found, key=lambda replica: (replica.clone_done, replica.pod))
