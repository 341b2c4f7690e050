"""How many lanes an arena gets, how large one request is, and how much a source may send.

One lane, a plain chain, is the rule: more lanes cost smaller requests, and gain nothing while one sender can fill the
receiver's link. They are worth it in two cases:

* Sources under an egress cap: the receiver's link is filled by several of them only. As many lanes as sources are
  needed for that (ceil(100 / percent)), at most as there are, so that each source feeds one lane.
* Targets in a domain without a sealed node: the way in is narrow, and each byte should take it once, through as many
  gateways as there are. As many lanes as the largest such domain has targets.

The number holds for the life of a filling arena: once one is filling, what it does is the rule for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from flashboot_agent.core.lanes import lane_count
from flashboot_agent.wire.arena import MAX_LANES

MAX_SOURCES = 4
MIN_REQUEST = 64 << 10
MAX_REQUEST = 4 << 20
DEFAULT_REQUEST = DIGEST_CHUNK_BYTES
"""Where nobody says how fast the link is."""
TCP_OVERHEAD_S = 200e-6
"""What passes between two requests of a TCP or TLS connection."""
IN_FLIGHT = 2
"""Requests in flight per edge, at least (w)."""
MIN_EGRESS = 1 << 20


def how_many(
    arena_bytes: int,
    *,
    filling: Iterable[int],
    sources: int,
    percent: int | None,
    strangers: Mapping[str, int],
) -> int:
    """Lanes of an arena. `filling`: the numbers of lanes of the arenas that fill now. `percent`: the egress cap of a
    source, None or 100 for none. `strangers`: domains without a sealed node → their targets."""
    present = Counter(filling)
    if present:
        return min(present, key=lambda lanes: (-present[lanes], lanes))
    capped = -(-100 // percent) if percent is not None and percent < 100 else 1
    return lane_count(arena_bytes, max(1, min(sources, capped), max(strangers.values(), default=1)))


def lanes_per_root(lanes: int, percent: int | None) -> int | None:
    """How many lanes one sealed node should feed under its cap; None: as many as there are."""
    return None if percent is None or percent >= 100 else max(1, lanes * percent // 100)


def request_bytes(link: int | None, lanes: int, *, overhead_s: float = TCP_OVERHEAD_S) -> int:
    """One ranged request on a link of so many bytes a second: large enough that with two in flight the link never idles
    (a power of two ≥ o·B/(k(w−1))), small enough that a deep chain fills fast. Never below DEFAULT_REQUEST: bytes are
    passed on once their whole chunk is verified, so that smaller requests would cost and gain nothing."""
    return (
        DEFAULT_REQUEST
        if link is None
        else min(MAX_REQUEST, max(DEFAULT_REQUEST, chunk_bytes(link, lanes, overhead_s)))
    )


def chunk_bytes(link: float, lanes: int, overhead_s: float, in_flight: int = IN_FLIGHT) -> int:
    """The same without an upper bound, for links of any speed. Raises ValueError for fewer than two in flight."""
    if in_flight < 2:
        raise ValueError("the chunk rule needs two requests in flight: with one, the link idles after each")
    least = overhead_s * link / (lanes * (in_flight - 1))
    chunk = MIN_REQUEST
    while chunk < least:
        chunk *= 2
    return chunk


def egress(link: int | None, percent: int | None) -> int | None:
    """Bytes a second that a source may send of one arena; None: no cap, or nobody says how fast the link is."""
    return None if link is None or percent is None or percent >= 100 else max(MIN_EGRESS, link * percent // 100)


__all__ = ["MAX_LANES", "MAX_SOURCES", "chunk_bytes", "egress", "how_many", "lanes_per_root", "request_bytes"]
