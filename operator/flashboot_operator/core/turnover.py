"""Which groups are made and which go: scaling and the roll-out of another template, inside the limits. Pure.

By our own doing there are never fewer ready groups than `replicas − maxUnavailable`, and never more groups than
`replicas + maxSurge`. Nothing is remembered: the next step follows from the groups that there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice


@dataclass(frozen=True)
class Group:
    """One group that is not going already."""

    name: str
    current: bool
    """It was made from the present template."""
    ready: bool


@dataclass(frozen=True)
class Step:
    create: tuple[int, ...] = ()
    """Ordinals."""
    delete: tuple[str, ...] = ()
    """Names."""


def next_step(
    groups: Sequence[Group], *, replicas: int, max_surge: int, max_unavailable: int, taken: Collection[int]
) -> Step:
    """What to do now. `groups`: those whose loss costs least first. `taken`: ordinals whose names are still in use."""
    current, old = [g for g in groups if g.current], [g for g in groups if not g.current]
    # What is left of these serves as before or better: `current` is cut to the number, the cheapest first.
    surplus = current[: max(0, len(current) - replicas)]
    current = current[len(surplus) :]
    going = [g.name for g in surplus] + _outdated(current, old, replicas, max(0, replicas - max_unavailable))
    missing = min(replicas - len(current), replicas + max_surge - len(current) - len(old))
    return Step(tuple(islice(_free(taken), max(0, missing))), tuple(going))


def _outdated(current: Sequence[Group], old: Sequence[Group], replicas: int, least_ready: int) -> list[str]:
    """Groups of an older template that can go now."""
    waiting = sum(1 for g in current if not g.ready)
    room = max(0, len(current) + len(old) - waiting - least_ready)
    unready = [g.name for g in old if not g.ready]
    if len(current) < replicas:  # else each has its successor, which may just need the place
        unready = unready[:room]
    spare = max(0, sum(1 for g in (*current, *old) if g.ready) - least_ready)
    ready = [g.name for g in old if g.ready][: min(max(0, room - len(unready)), spare)]
    return unready + ready


def _free(taken: Collection[int]) -> Iterator[int]:
    return (ordinal for ordinal in count() if ordinal not in taken)
