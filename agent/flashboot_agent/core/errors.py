"""The error tree. A message names the thing and the way out; whether to try again is a type, not a flag.

FlashBootError                      reason, message; becomes a Problem on every wire
├── Refused                         trying the same again is useless
│   ├── BadRequest                  malformed message, frame or document
│   ├── StaleEpoch                  a newer operator has spoken
│   ├── WrongNode                   desired state of another node
│   ├── UnknownArena                no such arena here
│   ├── IdentityMismatch            names the field and both values
│   ├── UnsupportedModel            nothing that FlashBoot may carry; before a byte moves
│   ├── UnsupportedEngine           another SGLang version, or the hook is not in
│   ├── CommitRefused               the seed's arena can't be sealed
│   ├── ArenaImmutable              it was not made to be updated
│   ├── DeltaUntrusted              a delta that is not signed by whom it must be
│   └── DeltaBaseMismatch           a delta between other versions than what is here
└── Retryable                       the same may work later, or from another parent
    ├── NotReady                    the arena is not there yet
    │   └── ArenaUpdating           it is between two versions
    ├── ArenaInUse                  somebody reads it who can't be asked to stop
    ├── InsufficientMemory          the node's budget is used up
    ├── ParentUnreachable           no connection, or it broke
    ├── PeerRefused                 its certificate is not what it must be
    ├── TornFrame                   the peer's bytes make no frame
    ├── ImageDamaged                an arena image on disk can't be believed
    ├── DeltaDamaged                a delta file can't be believed
    ├── DeltaUnreachable            where deltas are published can't be reached
    ├── DiskFull                    no room for a file; nothing of it was left
    ├── DigestMismatch              a chunk differs from its digest
    ├── DeadlineExceeded            a wait ran out; says on whom
    ├── CloneFailed                 every parent failed; says why each
    ├── SeedFailed                  the engine could not load
    └── Checkpoint…                 a file of the checkpoint; says which
        ├── CheckpointMissing
        ├── CheckpointMalformed
        ├── CheckpointIndexMissingShard
        └── CheckpointTruncated
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from flashboot_agent.wire.problem import Problem, ProblemReason


class FlashBootError(Exception):
    """Base of all; `str()` is the message for people."""

    reason: ClassVar[ProblemReason] = "Internal"

    def problem(self) -> Problem:
        # Late, because pydantic takes longer to import than an engine to attach, which is done without an error.
        from flashboot_agent.wire.problem import Problem

        # A path from a file system may hold bytes that are no text; a message must never fail for that.
        message = str(self).encode("utf-8", "backslashreplace").decode()
        return Problem(reason=self.reason, message=message[:4096])


class Refused(FlashBootError):
    """Trying the same again is useless."""


class Retryable(FlashBootError):
    """The same may work later, or from another parent."""


class BadRequest(Refused):
    reason = "BadRequest"


class StaleEpoch(Refused):
    reason = "StaleEpoch"

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch = epoch

    def problem(self) -> Problem:
        return super().problem().model_copy(update={"epoch": self.epoch})


class WrongNode(Refused):
    reason = "WrongNode"


class UnknownArena(Refused):
    reason = "UnknownArena"


class IdentityMismatch(Refused):
    reason = "IdentityMismatch"


class UnsupportedModel(Refused):
    reason = "UnsupportedModel"


class UnsupportedEngine(Refused):
    reason = "UnsupportedEngine"


class CommitRefused(Refused):
    reason = "CommitRefused"


class ArenaImmutable(Refused):
    reason = "ArenaImmutable"


class DeltaUntrusted(Refused):
    reason = "DeltaUntrusted"


class DeltaBaseMismatch(Refused):
    reason = "DeltaBaseMismatch"


class NotReady(Retryable):
    reason: ClassVar[ProblemReason] = "NotReady"


class ArenaUpdating(NotReady):
    reason = "ArenaUpdating"


class ArenaInUse(Retryable):
    reason = "ArenaInUse"


class InsufficientMemory(Retryable):
    reason = "InsufficientMemory"


class ParentUnreachable(Retryable):
    reason = "ParentUnreachable"


class PeerRefused(Retryable):
    reason = "PeerRefused"


class TornFrame(Retryable):
    reason = "TornFrame"


class ImageDamaged(Retryable):
    reason = "ImageDamaged"


class DeltaDamaged(Retryable):
    reason = "DeltaDamaged"


class DeltaUnreachable(Retryable):
    reason = "DeltaUnreachable"


class DiskFull(Retryable):
    reason = "DiskFull"


class DigestMismatch(Retryable):
    reason = "DigestMismatch"


class DeadlineExceeded(Retryable):
    reason = "Timeout"


class CloneFailed(Retryable):
    reason = "CloneFailed"


class SeedFailed(Retryable):
    reason = "SeedFailed"


class CheckpointMissing(Retryable):
    reason = "CheckpointMissing"


class CheckpointMalformed(Retryable):
    reason = "CheckpointMalformed"


class CheckpointIndexMissingShard(Retryable):
    reason = "CheckpointIndexMissingShard"


class CheckpointTruncated(Retryable):
    reason = "CheckpointTruncated"


_KNOWN: dict[str, type[FlashBootError]] = {
    cls.reason: cls for base in (Refused, Retryable, NotReady) for cls in base.__subclasses__()
}


def from_problem(problem: Problem) -> FlashBootError:
    """The exception that a peer's Problem stands for."""
    cls = _KNOWN.get(problem.reason)
    if cls is None:
        return FlashBootError(problem.message)
    if cls is StaleEpoch:
        return StaleEpoch(problem.message, problem.epoch or 0)
    return cls(problem.message)
