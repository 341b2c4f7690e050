"""Operator → agent: the whole desired state of one node (control.py)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from flashboot_agent.wire.arena import MAX_LANES, ArenaOwner, Peer
from flashboot_agent.wire.base import ArenaId, Digest, Name, Text, Uid, WireModel, without_empty
from flashboot_agent.wire.update import WantedUpdate

Role = Literal["seed", "clone", "hold", "load", "copy"]
"""What a node shall do about an arena that it does not hold yet.

seed: the pod `seed_pod` loads the checkpoint and commits; every other pod of this arena waits.
clone: allocate once one of `pods` is published by the door, then pull each lane from its `parents[0]`, and on failure
       from the next one; an empty list means "be ready and wait for a parent" (or for a seed elsewhere).
hold: never start anything; keep the arena if it is resident (the last source of an identity, between two pods).
load: fill it from the image on this node's disk, though no pod here needs it, and keep it: pods elsewhere wait for it.
copy: pull it as a clone does, though no pod here needs it, and keep it: the nodes that hold it are about to go.
A resident (sealed) arena is kept under every role.
"""

Eviction = Literal["never", "spare", "last"]
"""Whether a resident arena that no pod here uses may go when another one needs its memory.

never: it may not. spare: it may, it is also elsewhere. last: it may, but it is nowhere else; so after those that are.
"""


class Lane(WireModel):
    """What this node does for one lane of an arena: a contiguous byte range (core/lanes.py) with a tree of its own."""

    parents: Annotated[list[Peer], Field(max_length=16)] = []
    """The parent, then whom the agent may try by itself when that one fails: grandparent, best free peer, source."""


class WantedArena(ArenaOwner):
    """One arena that the operator wants on this node."""

    identity: Digest | None = None
    """Full identity, once a seed has committed it; a clone whose parent answers with another one is refused."""
    digest: Digest | None = None
    """Root digest of the sealed source's bytes, once known; a parent that announces another one is refused."""
    layout_digest: Digest | None = None
    """Of the sealed source's layout document, likewise: it says which bytes are which tensor's."""
    role: Role
    seed_pod: Uid | None = None
    lanes: Annotated[list[Lane], Field(min_length=1, max_length=MAX_LANES)] = [Lane()]
    """Their number stays the same for the life of an arena. An agent whose filling arena has another number of lanes
    keeps its own number, and takes the parents of lane i modulo the length of this list."""
    request_bytes: Annotated[int, Field(ge=65536, le=4 << 20, multiple_of=4096)] = 1 << 20
    """Bytes of one ranged request (the chunk rule of the planner)."""
    egress_bytes_per_second: Annotated[int | None, Field(ge=1 << 20)] = None
    """Most bytes a second that this node sends of this arena to all its children together; None: no cap."""
    pods: Annotated[list[Uid], Field(max_length=256)] = []
    elsewhere: Annotated[dict[Uid, Annotated[list[Text], Field(max_length=8)]], Field(max_length=256)] = {}
    """Of `pods`: which ranks of their replica, in pods on other nodes, have no memory yet, in words. While there are
    any, no rank of such a pod may measure free memory (the memory-sampling rule)."""
    refused: Annotated[list[Uid], Field(max_length=256)] = []
    """Those of `pods` whose engine asked for another identity than this arena's, and that shall get nothing else."""
    eviction: Eviction = "never"
    updatable: bool = False
    """Whether an arena that is made by this order may be updated in place later (docs/design/0025); one that exists
    stays what it is."""
    update: WantedUpdate | None = None
    """To which version it shall be brought once it is resident here.

    All three left out while they say nothing, which an agent that does not know them accepts."""

    @model_serializer(mode="wrap")
    def _bare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = handler(self)
        if self.eviction == "never":
            said.pop("eviction", None)
        return without_empty(said, "updatable", "update")


class Probe(WireModel):
    """Another node's sealed arena of which this node shall read a chunk now and then, as a clone would, so that a
    source that only says that it is ready is found out before a clone needs it."""

    arena: ArenaId
    peer: Peer
    first_after_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """The first try comes so long after the probe was wanted first; 0: at once."""


class Desired(WireModel):
    """The whole desired state of one node. An arena that is not listed here and that no pod uses is dropped."""

    protocol: Literal[1] = 1
    epoch: Annotated[int, Field(ge=0)]
    """leaseTransitions of the operator that speaks; an agent refuses an epoch below the highest that it has seen."""
    revision: Annotated[int, Field(ge=0)]
    """Rises within an epoch; a lower revision of the same epoch is answered 409 as stale too."""
    node: Name
    ttl_seconds: Annotated[int, Field(ge=1, le=86400)] = 600
    """How long this state counts as fresh. Stale: pods keep their arenas, those that only the operator wanted go."""
    arenas: Annotated[list[WantedArena], Field(max_length=4096)] = []
    probes: Annotated[list[Probe], Field(max_length=4096)] = []
    barred: Annotated[list[Uid], Field(max_length=4096)] = []
    """Pods here that two ModelReplicas claim: they get no arena, whatever their volume says.

    Both left out while empty, which an agent that does not know them accepts."""

    @model_serializer(mode="wrap")
    def _bare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_empty(handler(self), "probes", "barred")


class Accepted(WireModel):
    epoch: int
    revision: int
