"""The two-level digest of arena bytes: xxh3-64 over the little-endian xxh3-64 values of 4 KiB leaves.

One value per chunk, the same in manifest, image, wire and (later) on a GPU, which can compute the leaves in parallel.
The root is the same function's upper level over the chunk digests. It guards against damage, not against forgery.
"""

from __future__ import annotations

from typing import Final

from flashboot_agent import _native
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES

LEAF_BYTES: Final = 4096


def chunk_digest(data: memoryview | bytes) -> int:
    """Digest of one chunk as an unsigned 64-bit number; `data` is at most DIGEST_CHUNK_BYTES long, contiguous."""
    return _native.chunk_digest(data)


def chunk_digests(data: memoryview | bytes, threads: int = 1) -> bytes:
    """Digests of all chunks of `data`: 8 bytes each, little-endian. Releases the GIL."""
    return _native.chunk_digests(data, DIGEST_CHUNK_BYTES, threads)


def root_digest(digests: bytes) -> str:
    """`xxh3:` and 16 hex digits over the table that `chunk_digests` gives."""
    return f"xxh3:{_native.xxh3_64(digests):016x}"
