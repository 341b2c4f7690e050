"""What a node observes of the arenas on it: how far they are, whom they come from, who uses them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from flashboot_agent.wire.arena import MAX_LANES, ArenaOwner, ArenaState, Way
from flashboot_agent.wire.base import ArenaId, Digest, Name, Text, Time, Uid, WireModel, without_empty
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.update import ObservedUpdate, Version


class Accusation(WireModel):
    """A child's word about a parent that failed it."""

    node: Name
    problem: Problem
    at: Time


class ObservedLane(WireModel):
    """One lane of an arena here."""

    watermark: int
    """Bytes of the lane that are verified, counted from its start."""
    parent: Name | None = None
    starved: bool = False
    """The parent answers, and has no byte that we lack: our pace is its pace, and no word against it."""


class Path(WireModel):
    """Bytes that came from one peer, and how. What a retry fetched again counts again."""

    node: Name
    transport: Text
    bytes_in: int


class ObservedArena(ArenaOwner):
    state: ArenaState
    way: Way
    bytes: int
    watermark: int
    """Bytes that are verified, over all lanes; `bytes` once it is sealed."""
    version: Version = 0
    updatable: bool = False
    update: ObservedUpdate | None = None
    """The order to bring it to another version.

    All three left out while they say nothing, which an operator that does not know them accepts."""
    lanes: Annotated[list[ObservedLane], Field(max_length=MAX_LANES)] = []
    identity: Digest | None = None
    digest: Digest | None = None
    layout_digest: Digest | None = None
    parent: Name | None = None
    """Of lane 0."""
    transport: str | None = None
    transport_reason: Text | None = None
    created_at: Time
    started_at: Time | None = None
    """First byte asked for (clone) or the seed's hello (seed)."""
    sealed_at: Time | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    paths: Annotated[list[Path], Field(max_length=64)] = []
    refetched_chunks: int = 0
    children: Annotated[list[Name], Field(max_length=256)] = []
    """Nodes that pulled from this arena within the last seconds."""
    pods: Annotated[list[Uid], Field(max_length=256)] = []
    accusations: Annotated[list[Accusation], Field(max_length=16)] = []
    problem: Problem | None = None

    @model_serializer(mode="wrap")
    def _bare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return without_empty(handler(self), "version", "updatable", "update")


class ObservedImage(WireModel):
    """An arena image on this node's disk."""

    arena: ArenaId
    identity: Digest
    digest: Digest
    bytes: int


class Evicted(ArenaOwner):
    """A copy that made room on this node: the operator had said that it may."""

    bytes: int
    at: Time
    message: Text
    """For whom it went, for people."""
