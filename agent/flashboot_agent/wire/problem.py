"""What went wrong, on the wire: the same in refusals and in what a node observes."""

from __future__ import annotations

from typing import Literal

from flashboot_agent.wire.base import Text, WireModel

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
    "ArenaImmutable",
    "ArenaUpdating",
    "ArenaInUse",
    "CloneFailed",
    "DigestMismatch",
    "ParentUnreachable",
    "PeerRefused",
    "TornFrame",
    "ImageDamaged",
    "DeltaDamaged",
    "DeltaUnreachable",
    "DeltaUntrusted",
    "DeltaBaseMismatch",
    "DiskFull",
    "Timeout",
    "Internal",
]


class Problem(WireModel):
    """A typed refusal or a trouble, for a program (`reason`) and for a person (`message`, which says what to do)."""

    reason: ProblemReason
    message: Text
    epoch: int | None = None
    """With StaleEpoch: the highest epoch that the agent has seen."""
