"""Lanes: an arena cut into contiguous byte ranges, each with a tree and a watermark of its own. Pure.

Both ends know nothing of each other's lanes: a child asks for byte ranges, and a parent answers from whatever runs of
verified bytes it has. So nodes with different numbers of lanes serve each other.
"""

from __future__ import annotations

from itertools import pairwise

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES, chunk_count
from flashboot_agent.wire.arena import MAX_LANES


def lane_count(arena_bytes: int, wanted: int) -> int:
    """How many lanes an arena really gets: no lane without a chunk, none above the limit."""
    return max(1, min(wanted, MAX_LANES, chunk_count(arena_bytes)))


def lane_bounds(arena_bytes: int, lanes: int) -> list[tuple[int, int]]:
    """[start, end) of each lane in bytes. Starts are multiples of the digest chunk; lengths differ by a chunk at most.

    Raises ValueError when there are more lanes than chunks."""
    chunks = chunk_count(arena_bytes)
    if not 1 <= lanes <= max(1, chunks):
        raise ValueError(f"{lanes} lanes for an arena of {chunks} chunks")
    cuts = [min(i * chunks // lanes * DIGEST_CHUNK_BYTES, arena_bytes) for i in range(lanes)] + [arena_bytes]
    return list(pairwise(cuts))
