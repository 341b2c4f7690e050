"""Who feeds the others, and who loads the checkpoint when there is nobody to feed from.

Both choices are stable: the present one stays as long as it is sound, so that an election never moves because facts
arrived in another order. Among equals the smaller name wins, so that two operators choose alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from flashboot_operator.core.reasons import SourceReason


@dataclass(frozen=True)
class Sealed:
    """A node that holds the arena, complete and verified."""

    node: str
    fresh: bool = True
    """Its agent answers now."""
    accused: bool = False
    """A child has complained about it within the last while."""
    cordoned: bool = False
    """The node is about to be drained."""
    engines: int = 0
    """Pods whose engine serves from this arena."""
    children: int = 0

    @property
    def sound(self) -> bool:
        return self.fresh and not self.accused and not self.cordoned


@dataclass(frozen=True)
class Source:
    node: str
    reason: SourceReason
    """LastResort: it is not sound, and there is no better one."""


def elect_source(sealed: Iterable[Sealed], current: str | None) -> Source | None:
    candidates = sorted(sealed, key=lambda s: s.node)
    if not candidates:
        return None
    kept = next((s for s in candidates if s.node == current and s.sound), None)
    best = kept or min(
        candidates,
        key=lambda s: (
            not s.fresh,
            s.accused,
            s.cordoned,
            s.engines > 0,
            s.children,
            s.engines,
            s.node != current,
            s.node,
        ),
    )
    reason: SourceReason
    if not best.sound:
        reason = "LastResort"
    elif len(candidates) == 1:
        reason = "OnlySealed"
    else:
        reason = "ServingAndSealed" if best.engines else "IdleAndSealed"
    return Source(best.node, reason)


def others_by_rank(sealed: Iterable[Sealed], elected: str) -> list[Sealed]:
    """All sealed nodes in the order in which they shall feed others: the elected one, then sound ones, idle ones first.

    How many children one has now is no criterion here: the order of several sources must not change with every edge."""
    return sorted(sealed, key=lambda s: (s.node != elected, not s.sound, s.engines > 0, s.node))


@dataclass(frozen=True)
class SeedCandidate:
    """A replica whose volumes are published, so that its engines can ask."""

    uid: str
    """Of its pod, or what its pods have in common."""
    bound: datetime
    seeding: bool = False
    """One of its ranks fills its arena now."""
    failed: bool = False
    """One of its ranks tried and could not."""


def elect_seed(pods: Iterable[SeedCandidate], current: str | None) -> str | None:
    """UID of the replica that shall load the checkpoint, None while none can.

    A seed that failed is replaced by one that has not; when all have failed, the present one goes on trying, at the
    pace at which kubelet restarts it.
    """
    candidates = sorted(pods, key=lambda p: (p.bound, p.uid))
    at_work = next((p for p in candidates if p.seeding and not p.failed), None)
    if at_work is not None and (current is None or all(p.uid != current or p.failed for p in candidates)):
        return at_work.uid
    present = next((p for p in candidates if p.uid == current), None)
    if present is not None and not present.failed:
        return present.uid
    untried = next((p for p in candidates if not p.failed), None)
    chosen = untried or present or (candidates[0] if candidates else None)
    return chosen.uid if chosen else None
