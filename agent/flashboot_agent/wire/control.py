"""Operator ↔ agent: the desired state of a node, and what the node observes.

The manner is that of xDS: the operator PUTs a node's *whole* desired state, the agent moves towards it on its own, and
the operator long-polls what the agent observes. Both directions are level-triggered and idempotent, so that a lost or
repeated message changes nothing.

    PUT  /v1/desired                              body: Desired   → 200 Accepted | 409 Problem(StaleEpoch)
    GET  /v1/observed?after=N&waitSeconds=25      → 200 Observed, as soon as counter > N, or unchanged at the deadline
    GET  /v1/arenas/{arena}                       → 200 ObservedArena | 404 Problem(UnknownArena)
    GET  /v1/certificate                          → 200 CertificateRequest   (wire/trust.py)
    PUT  /v1/certificate                          body: Certificate → 200 | 400 Problem(BadRequest)

The GETs of states answer 503 Problem(NotReady) from an agent that has just started, until it has asked its holder what
is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from flashboot_agent.wire.base import Address, ArenaId, Digest, Name, Text, Time, Uid, WireModel
from flashboot_agent.wire.place import Place as Place  # noqa: PLC0414 - a part of these messages

PROTOCOL: Final = 1
"""Agents and an operator of one protocol understand each other, whatever their versions. As models refuse what they do
not know, every release that changes a message raises it. An operator leaves an agent of another protocol alone: its
engines serve, its arenas stay, nothing new begins there, and the conditions say so."""

Role = Literal["seed", "clone", "hold", "load"]
"""What a node shall do about an arena that it does not hold yet.

seed: the pod `seed_pod` loads the checkpoint and commits; every other pod of this arena waits.
clone: allocate once one of `pods` is published by the door, then pull each lane from its `parents[0]`, and on failure
       from the next one; an empty list means "be ready and wait for a parent" (or for a seed elsewhere).
hold: never start anything; keep the arena if it is resident (the last source of an identity, between two pods).
load: fill it from the image on this node's disk, though no pod here needs it, and keep it: pods elsewhere wait for it.
A resident (sealed) arena is kept under every role.
"""

Eviction = Literal["never", "spare", "last"]
"""Whether a resident arena that no pod here uses may go when another one needs its memory.

never: it may not. spare: it may, it is also elsewhere. last: it may, but it is nowhere else; so after those that are.
"""

Way = Literal["seed", "clone", "load"]
"""How an arena came to be; load: FlashLoad from an arena image on this node."""

ArenaState = Literal["allocated", "seeding", "filling", "sealed"]
"""allocated: memory is there, no byte yet; with `bytes` 0 a clone that has not learned its size from a parent yet.
seeding: an engine writes it. filling: a clone or a load runs. sealed:
resident."""


class Peer(WireModel):
    """A node that holds (part of) an arena and serves it."""

    node: Name
    address: Address


class Lane(WireModel):
    """What this node does for one lane of an arena: a contiguous byte range (core/lanes.py) with a tree of its own."""

    parents: Annotated[list[Peer], Field(max_length=16)] = []
    """The parent, then whom the agent may try by itself when that one fails: grandparent, best free peer, source."""


MAX_LANES: Final = 16
MAX_RANKS: Final = 64
"""Of one pod."""


class ArenaOwner(WireModel):
    """Which arena, and whose: the same in orders, observations, records and images."""

    arena: ArenaId
    namespace: Name
    model_replica: Name
    model_replica_uid: Uid
    expected_identity: Digest
    place: Place = Place()

    def owner(self) -> dict[str, Any]:
        """These fields, for another model that has them."""
        return {name: getattr(self, name) for name in ArenaOwner.model_fields}


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
    """Left out while it is `never`, which an agent that does not know it accepts."""

    @model_serializer(mode="wrap")
    def _bare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = handler(self)
        if self.eviction == "never":
            said.pop("eviction", None)
        return said


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
    """Left out while empty, which an agent that does not know them accepts."""

    @model_serializer(mode="wrap")
    def _bare(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(handler(self), "probes")


class Accepted(WireModel):
    epoch: int
    revision: int


ProblemReason = Literal[
    "BadRequest",
    "StaleEpoch",
    "WrongNode",
    "UnknownArena",
    "IdentityMismatch",
    "NotReady",
    "InsufficientMemory",
    "CheckpointMissing",
    "CheckpointMalformed",
    "CheckpointIndexMissingShard",
    "CheckpointTruncated",
    "UnsupportedModel",
    "UnsupportedEngine",
    "SeedFailed",
    "CommitRefused",
    "CloneFailed",
    "DigestMismatch",
    "ParentUnreachable",
    "PeerRefused",
    "TornFrame",
    "ImageDamaged",
    "Timeout",
    "Internal",
]


class Problem(WireModel):
    """A typed refusal or a trouble, for a program (`reason`) and for a person (`message`, which says what to do)."""

    reason: ProblemReason
    message: Text
    epoch: int | None = None
    """With StaleEpoch: the highest epoch that the agent has seen."""


PodPhase = Literal["published", "connected", "coming", "seeding", "attached"]
"""published: the door mounted the socket. connected: the plug-in said hello. coming: it waits for its arena.
seeding: it loads the checkpoint into the arena. attached: its tensors lie in a sealed arena."""


def least_far(phases: Iterable[PodPhase]) -> PodPhase:
    """The first of the phases that a pod goes through; `published` of none."""
    return min(phases, key=get_args(PodPhase).index, default="published")


class ObservedRank(WireModel):
    """One rank of a pod: an engine process, or one that the operator expects there."""

    place: Place = Place()
    arena: ArenaId | None = None
    phase: PodPhase = "published"
    hello_at: Time | None = None
    """When the engine first asked to attach."""
    attached_at: Time | None = None
    way: Way | None = None
    identity: Digest | None = None
    """The full identity that the engine asked for."""
    problem: Problem | None = None
    """The present trouble of this rank, gone when it is put right."""


Milliseconds = Annotated[int, Field(ge=0, le=7 * 86_400_000)]


class StartupTimes(WireModel):
    """How long the phases of an engine's start took, as SGLang measures them; of several ranks the slowest counts."""

    load_weight_milliseconds: Milliseconds
    """Building the model and having its weights: attaching, or loading as the seed; with the wait for either."""
    kv_cache_allocation_milliseconds: Milliseconds
    cuda_graph_milliseconds: Milliseconds
    """Of all kinds of graphs together."""
    scheduler_milliseconds: Milliseconds
    """From the start of a scheduler process until it can run batches; the phases above are parts of it."""
    tokenizer_milliseconds: Milliseconds
    """From the launch of the processes until all of them are up; the scheduler's time is a part of it."""
    api_ready_milliseconds: Milliseconds | None = None
    """From the start of the main process until the API was ready; None: nobody there could tell."""


class ObservedPod(WireModel):
    """A pod with a door volume on this node."""

    uid: Uid
    namespace: Name
    name: Name
    model_replica: Name | None = None
    published_at: Time
    ranks: Annotated[list[ObservedRank], Field(max_length=MAX_RANKS)] = []
    """By place: those that the desired state expects, and those that asked."""
    problem: Problem | None = None
    """The present trouble of its engine before any rank spoke, gone when it is put right."""
    startup: StartupTimes | None = None
    """Once its API was ready, and its main process has said so to this agent."""

    def rank(self, place: Place) -> ObservedRank | None:
        return next((rank for rank in self.ranks if rank.place == place), None)

    @property
    def phase(self) -> PodPhase:
        """Of the rank that is least far."""
        return least_far(rank.phase for rank in self.ranks)

    @property
    def hello_at(self) -> Time | None:
        """When the first of its ranks asked."""
        return min((rank.hello_at for rank in self.ranks if rank.hello_at), default=None)

    @property
    def attached_at(self) -> Time | None:
        """When the last of its ranks had its weights; None before."""
        times = [rank.attached_at for rank in self.ranks if rank.attached_at]
        return max(times) if times and len(times) == len(self.ranks) else None

    @property
    def problems(self) -> list[Problem]:
        """Its own and those of its ranks."""
        return [each for each in (self.problem, *(rank.problem for rank in self.ranks)) if each is not None]


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


class ObservedImage(WireModel):
    """An arena image on this node's disk."""

    arena: ArenaId
    identity: Digest
    digest: Digest
    bytes: int


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


class Evicted(ArenaOwner):
    """A copy that made room on this node: the operator had said that it may."""

    bytes: int
    at: Time
    message: Text
    """For whom it went, for people."""


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
        return _without_empty(handler(self), "images", "probes", "evicted")


def _without_empty(message: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in names or value}
