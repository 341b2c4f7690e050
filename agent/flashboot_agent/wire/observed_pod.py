"""What a node observes of the pods on it: how far their engines and each of their ranks are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from flashboot_agent.wire.arena import Way
from flashboot_agent.wire.base import ArenaId, Digest, Name, Time, Uid, WireModel
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem

MAX_RANKS: Final = 64
"""Of one pod."""

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
    heard_at: Time | None = None
    """When its engine said, or took back, such a trouble last; None: never to this agent."""
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
