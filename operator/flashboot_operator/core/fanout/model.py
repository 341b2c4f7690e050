"""What a fan-out plan is made from, and what it is. Plain values.

Per lane there is a forest of its own: who pulls that byte range from whom. A node that is *sealed* has every lane; a
*member* is a node that shall get the arena and can start now, or one that has gone and whose last place still matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DomainPolicy = Literal["RequireSame", "PreferSame", "Any"]

Plan = tuple[dict[str, str], ...]
"""Per lane: child → parent. A child without an entry waits: nobody can feed it yet."""


@dataclass(frozen=True)
class Member:
    node: str
    arrival: float
    """Seconds; when its pod's volume was published. Only ever compared."""
    watermarks: tuple[int, ...]
    """Verified bytes of each lane."""
    parents: tuple[str | None, ...]
    """Per lane: whom it pulls from, or was last told to."""
    serving: bool = False
    """Its agent has the arena allocated, so that others may pull from it."""
    stuck: bool = False
    """It cannot go on for a reason of its own, such as no memory: it must not keep a slot from others."""
    slow: bool = False
    """It holds up those below it (pace.py): no parent for others while there is a better one."""
    gone: bool = False
    """It no longer answers. It is neither child nor parent; who was above it is known still."""
    other_lanes: bool = False
    """Its arena is cut in another number of lanes: it pulls from sealed nodes only, and feeds nobody until it is
    one."""


@dataclass(frozen=True)
class Facts:
    lanes: tuple[int, ...]
    """Bytes of each lane."""
    sources: tuple[str, ...]
    """Sealed nodes that were elected to feed others, of every domain, those preferred first: in a domain that has m of
    them, lane s starts at number s mod m, as far as that can be had."""
    roots: tuple[str, ...]
    """All sealed nodes that answer, those preferred as parents first. The sources are among them."""
    members: tuple[Member, ...]
    accused: frozenset[tuple[str, str]] = frozenset()
    """(child, parent) complaints of the last while."""
    domains: Mapping[str, str] = field(default_factory=dict)
    policy: DomainPolicy = "PreferSame"
    lanes_per_root: int | None = None
    """How many lanes a sealed node that serves feeds under its egress cap, as long as another has them too; None:
    all."""
    serving: frozenset[str] = frozenset()
    """Sealed nodes whose engines serve from the arena: they feed others where no idle one can."""
    avoid: frozenset[str] = frozenset()
    """Sealed nodes that are drained, or that could not be read from: they feed where no other sealed node can."""
