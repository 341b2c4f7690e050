"""The grid on which an arena's bytes are verified. Apart from core/digest.py, so that the operator, which plans on this
grid, needs no C++ module.
"""

from __future__ import annotations

from typing import Final

DIGEST_CHUNK_BYTES: Final = 1 << 20
"""Bytes under one chunk digest: small enough to fetch again cheaply, large enough that 1 TB has a 8 MB table."""


def chunk_count(arena_bytes: int) -> int:
    """Number of chunks of an arena."""
    return -(-arena_bytes // DIGEST_CHUNK_BYTES)
