"""The documents of the operator's own HTTP API (`/v1/…`, JSON): what it knows and has decided right now.

    GET /v1/modelreplicas?namespace=NS&limit=N&after=NS/NAME    Listing
    GET /v1/modelreplicas/{namespace}/{name}                    ReplicaView
    GET /v1/modelreplicas/{namespace}/{name}/trees?rank=RANK    Trees
    GET /v1/nodes?node=NODE                                     Nodes
    anything that can't be answered                             Refusal

Within v1 fields are only added, and a reader passes over those that it does not know. No answer is larger than
`MOST_BYTES`; what would be is refused, and the refusal says how to ask for less.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from flashboot_agent.wire.base import Time
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed import HostMemory, Observed
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod

MOST_BYTES: Final = 16 << 20
MOST_LISTED: Final = 500


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()


class Refusal(Document):
    reason: Literal["NotFound", "BadRequest", "TooLarge"]
    message: str


class Summary(Document):
    """One ModelReplica in a line."""

    namespace: str
    name: str
    model: str
    revision: str
    desired: int | None
    """Replicas that are wanted; None while nobody has said a number."""
    ready: int
    source: str | None
    domain: str | None
    state: str
    """`Ready`, or the reason why it is not."""
    message: str
    since: str | None
    """Of the state."""


class Listing(Document):
    items: list[Summary]
    after: str | None = None
    """Ask again with this, there are more."""


class Progress(Document):
    pod: str
    stage: str
    text: str
    trouble: str | None = None
    """What is wrong with it, and what to do."""


class PodView(Document):
    uid: str
    name: str
    node: str | None
    ready: bool
    terminating: bool
    created_at: Time
    bound_at: Time | None
    ready_at: Time | None
    trouble: str | None


class Traffic(Document):
    """What the fan-out of an arena has moved so far, as the nodes say."""

    bytes_by_transport: dict[str, int]
    bytes_sent: dict[str, int]
    refetched_chunks: int


class RankPlan(Document):
    arena: str
    rank: str
    expected_identity: str
    source: str | None
    source_reason: str | None
    sources: dict[str, str] = {}
    """Domain → the node that feeds it."""
    seed_pod: str | None
    parents: dict[str, str]
    """Of lane 0."""
    slow: list[str]
    lanes: list[dict[str, str | None]]
    """What differs from lane 0; null for a child that waits in this lane only."""
    traffic: Traffic


class NodeView(Document):
    domain: str | None
    agent_silent_seconds: float | None
    wanted: list[WantedArena]
    arenas: list[ObservedArena] = []
    pods: list[ObservedPod] = []
    instance: str | None = None
    version: str | None = None
    epoch: int | None = None
    revision: int | None = None
    chunk_address: str | None = None
    memory: HostMemory | None = None


class ReplicaView(Document):
    """Everything about one ModelReplica."""

    namespace: str
    name: str
    uid: str
    epoch: int
    model: dict[str, Any]
    replicas: int | None
    status: dict[str, Any]
    progress: list[Progress]
    pods: list[PodView]
    plan: list[RankPlan]
    nodes: dict[str, NodeView]


class Member(Document):
    """A node in the trees of one rank: what holds for all lanes."""

    node: str
    domain: str
    state: Literal["source", "sealed", "updating", "seeding", "filling", "waiting"]
    """source: elected for a domain; sealed: holds everything, and may feed others; updating: does again soon."""
    pods: list[str]
    watermark: int
    """Bytes that are verified, over all lanes."""
    bytes_per_second: int | None = None
    """Over the last seconds; None when nothing moves."""
    since: Time | None = None
    """When it began to get bytes, or (complete) when it had them all."""
    transport: str | None = None
    transport_reason: str | None = None
    slow: bool = False
    quarantined: bool = False
    """Not to be a source for now: a node near it could not read a byte there."""
    notes: list[str] = []
    """What is wrong, in words."""


class ElectedSource(Document):
    domain: str
    node: str
    reason: str


class Edge(Document):
    """How one node gets one lane."""

    parent: str | None
    """By the node's own word, else as it was told; None while it waits for one."""
    planned: str | None = None
    """Set when the plan has moved on and the node has not yet."""
    watermark: int
    starved: bool = False
    """The parent has no byte that this node lacks."""


class LaneTree(Document):
    bytes: int
    edges: dict[str, Edge]
    """By child."""


class RankTrees(Document):
    arena: str
    rank: str
    bytes: int
    sources: list[ElectedSource]
    """The first one feeds the domains that have none."""
    seed_pod: str | None
    seed_node: str | None
    members: list[Member]
    lanes: Annotated[list[LaneTree], Field(max_length=16)]


class Trees(Document):
    """Who feeds whom now, rank by rank."""

    namespace: str
    name: str
    epoch: int
    at: Time
    ranks: list[RankTrees]


class LastWord(Document):
    node: str
    silent_seconds: float
    observed: Observed


class Nodes(Document):
    """The last word of every agent, whole."""

    items: list[LastWord]
