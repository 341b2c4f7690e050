"""The host's hot loops in C++ (csrc/). All release the GIL and take any contiguous buffer."""

from typing_extensions import Buffer

def xxh3_64(data: Buffer) -> int:
    """Plain xxh3-64 of the buffer."""

def chunk_digest(data: Buffer) -> int:
    """xxh3-64 over the little-endian xxh3-64 values of the buffer's 4 KiB leaves (the last may be shorter)."""

def chunk_digests(data: Buffer, chunk_bytes: int, threads: int) -> bytes:
    """`chunk_digest` of every `chunk_bytes` of the buffer, 8 bytes little-endian each.

    Raises ValueError when chunk_bytes is not a positive multiple of 4096 or threads is below 1."""
