"""Agent → operator: all that a node knows (control.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from flashboot_agent.wire.base import Address, ArenaId, Name, Text, Time, Uid, WireModel, without_empty
from flashboot_agent.wire.observed_arena import Evicted, ObservedArena, ObservedImage
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.problem import Problem


class ObservedProbe(WireModel):
    """How the tries to read from another node's arena went."""

    arena: ArenaId
    node: Name
    """Whose arena it is."""
    at: Time
    """Of the last try that told something about that node."""
    failures: Annotated[int, Field(ge=0)] = 0
    """In a row; 0: the last try brought a chunk, and its digest was right."""
    failing_since: Time | None = None
    recovered_at: Time | None = None
    """When a try brought a chunk again after several that failed."""
    problem: Problem | None = None
    """Of the last try that failed."""


class HostMemory(WireModel):
    """What the node really gives; reported, never assumed."""

    page_bytes: int
    shmem_enabled: Text
    """The selected word of /sys/kernel/mm/transparent_hugepage/shmem_enabled, or why it could not be read."""
    huge_pages_total: int
    huge_pages_free: int
    huge_page_bytes: int
    arena_pages: Text
    """What new arenas use, e.g. "4 KiB pages: shmem_enabled is never and no huge pages are reserved"."""
    budget_bytes: int
    used_bytes: int


class Observed(WireModel):
    """All that a node knows. `counter` rises with every change; it starts anew when `instance` changes."""

    protocol: Literal[1] = 1
    node: Name
    instance: Uid
    version: Text
    counter: int
    epoch: int
    revision: int
    """The epoch and revision of the desired state that the agent works on."""
    chunk_address: Address
    memory: HostMemory
    link_bytes_per_second: int | None = None
    """Of the way to other nodes, as the node's settings or its network device say; None: nobody says."""
    certificate_expires_at: Time | None = None
    """None: the agent has no certificate yet, or runs without TLS."""
    pods: list[ObservedPod] = []
    arenas: list[ObservedArena] = []
    images: list[ObservedImage] = []
    probes: list[ObservedProbe] = []
    evicted: Annotated[list[Evicted], Field(max_length=16)] = []
    """The last ones since this instance began, newest last.

    All three left out while empty: an operator that does not know them accepts that, and an agent that does not says
    nothing of them."""

    @model_serializer(mode="wrap")
    def _bare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_empty(handler(self), "images", "probes", "evicted")
