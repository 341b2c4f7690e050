"""An order to bring a resident arena to another version of its weights, and how far that is (docs/sparse-sync.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from flashboot_agent.wire.base import WireModel
from flashboot_agent.wire.problem import Problem

Version = Annotated[int, Field(ge=0, lt=1 << 63)]
"""Of an arena's weights; 0: those that it began with, from a checkpoint."""


class WantedUpdate(WireModel):
    """Bring the arena to this version of the chain that is published at `origin`."""

    version: Version
    origin: Annotated[str, StringConstraints(pattern=r"^(https?:/)?/\S+$", max_length=2048)]
    """An http(s) address of a publisher's folder, or the absolute path of one that this agent sees."""
    keys: Annotated[
        list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]], Field(min_length=1, max_length=16)
    ]
    """Ed25519 public keys, raw, in hexadecimal digits: one of them must have signed. Nothing unsigned is taken."""
    seconds: Annotated[int, Field(ge=1, le=86400)] = 600
    """For one attempt, from the first request to the last byte that is applied."""


Phase = Literal["fetching", "draining", "applying", "failed"]
"""fetching: the chain, then deltas; the arena serves meanwhile. draining: nobody new gets it, and those who read it are
waited for. applying: its bytes change. failed: see `problem`; the arena serves its version."""


class ObservedUpdate(WireModel):
    """Of an order that is not fulfilled. Once it is, the arena has the version, and this is gone."""

    wanted: Version
    phase: Phase
    base: Version | None = None
    """Of the delta that is fetched or applied."""
    new: Version | None = None
    fetched_bytes: Annotated[int, Field(ge=0)] = 0
    """Of the delta that is on its way or was last."""
    chunks: Annotated[int, Field(ge=0)] = 0
    """Of the arena, which this delta has gone through; they are written, or need not be."""
    chunks_total: Annotated[int, Field(ge=0)] = 0
    attempts: Annotated[int, Field(ge=1)] = 1
    problem: Problem | None = None
    """Of the last attempt that failed."""
    retried: bool = True
    """Whether the same order is tried again; if not, another one is needed."""
