"""Who feeds the others, one source for each domain, and who loads the checkpoint when there is nobody to feed from.

All choices are stable: the present one stays as long as it is sound, so that an election never moves because facts
arrived in another order. Among equals the smaller name wins, so that two operators choose alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from flashboot_operator.core.reasons import SourceReason, Unsound


@dataclass(frozen=True)
class Sealed:
    """A node that holds the arena, complete and verified."""

    node: str
    domain: str = ""
    fresh: bool = True
    """Its agent answers now."""
    quarantined: bool = False
    """A node near it could not read a byte from it when it tried last (quarantine.py)."""
    ready: bool = True
    """Its kubelet answers."""
    accused: bool = False
    """A child has complained about it within the last while."""
    cordoned: bool = False
    """The node is about to be drained."""
    leaving: bool = False
    """All pods there that use the arena are terminating."""
    engines: int = 0
    """Pods whose engine serves from this arena."""
    children: int = 0

    @property
    def against(self) -> Unsound | None:
        """What speaks against it, as a reason; None when it is sound. The worst thing first."""
        faults: tuple[tuple[bool, Unsound], ...] = (
            (not self.fresh, "SourceSilent"),
            (self.quarantined, "SourceQuarantined"),
            (not self.ready, "SourceNodeNotReady"),
            (self.accused, "SourceAccused"),
            (self.cordoned, "SourceDraining"),
        )
        return next((reason for fault, reason in faults if fault), None)

    @property
    def sound(self) -> bool:
        return self.against is None


UNSOUND: tuple[Unsound, ...] = get_args(Unsound)
"""The worst last."""


@dataclass(frozen=True)
class Source:
    node: str
    reason: SourceReason
    """One of UNSOUND where there is no better one."""


def elect_source(sealed: Iterable[Sealed], current: str | None) -> Source | None:
    """The present one as long as it is sound and stays; else the best, idle ones before those that serve."""
    candidates = sorted(sealed, key=lambda s: s.node)
    if not candidates:
        return None
    kept = next((s for s in candidates if s.node == current and s.sound and not s.leaving), None)
    best = kept or min(
        candidates,
        key=lambda s: (
            _badness(s),
            s.leaving,
            s.engines > 0,
            s.children,
            s.engines,
            s.node != current,
            s.node,
        ),
    )
    if (against := best.against) is not None:
        return Source(best.node, against)
    if len(candidates) == 1:
        return Source(best.node, "OnlySealed")
    return Source(best.node, "ServingAndSealed" if best.engines else "IdleAndSealed")


def _badness(candidate: Sealed) -> int:
    return 0 if candidate.against is None else 1 + UNSOUND.index(candidate.against)


def elect_sources(sealed: Iterable[Sealed], present: Sequence[str]) -> dict[str, Source]:
    """Domain → its source, for domains that have a sealed node. The first is *home*: it feeds the domains that have
    none, and its arena stays when there are no pods. `present`: the sources now, home first."""
    candidates = sorted(sealed, key=lambda s: s.node)
    home = elect_source(candidates, present[0] if present else None)
    if home is None:
        return {}
    domains = {each.node: each.domain for each in candidates}
    now = {domains[node]: node for node in reversed([home.node, *present]) if node in domains}
    found = {}
    for domain in sorted(set(domains.values()), key=lambda domain: (domain != domains[home.node], domain)):
        source = elect_source([each for each in candidates if each.domain == domain], now.get(domain))
        assert source is not None, "the domain has a sealed node"
        found[domain] = source
    return found


def others_by_rank(sealed: Iterable[Sealed], elected: Sequence[str]) -> list[Sealed]:
    """All sealed nodes in the order in which they shall feed others: the elected ones, then sound and idle ones.

    How many children one has now is no criterion here: the order of several sources must not change with every edge."""
    rank = {node: number for number, node in enumerate(elected)}
    return sorted(sealed, key=lambda s: (rank.get(s.node, len(rank)), _badness(s), s.leaving, s.engines > 0, s.node))


@dataclass(frozen=True)
class SeedCandidate:
    """A replica whose volumes are published, so that its engines can ask."""

    uid: str
    """Of its pod, or what its pods have in common."""
    bound: datetime
    seeding: bool = False
    """One of its ranks fills its arena now."""
    failed: bool = False
    """One of its ranks tried and could not, or it does not even come to try."""
    image: bool = False
    """Its nodes have images of the arenas of all its ranks: nothing needs to be loaded from the checkpoint."""


def elect_seed(pods: Iterable[SeedCandidate], current: str | None) -> str | None:
    """UID of the replica that shall load the checkpoint, None while none can.

    One with images goes before one without. A seed that failed is replaced by one that has not; when all have failed,
    the present one goes on trying, at the pace at which kubelet restarts it.
    """
    candidates = sorted(pods, key=lambda p: (not p.image, p.bound, p.uid))
    at_work = next((p for p in candidates if p.seeding and not p.failed), None)
    if at_work is not None and (current is None or all(p.uid != current or p.failed for p in candidates)):
        return at_work.uid
    present = next((p for p in candidates if p.uid == current), None)
    if present is not None and not present.failed:
        return present.uid
    untried = next((p for p in candidates if not p.failed), None)
    chosen = untried or present or (candidates[0] if candidates else None)
    return chosen.uid if chosen else None
