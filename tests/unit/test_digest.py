"""The native digest against a plain reading of its definition, and its manners towards buffers and threads.

Guarantee held here: one chunk has one value, whichever part of the system computes it, with any number of threads.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent import _native
from flashboot_agent.core import chunks, digest

LEAF = digest.LEAF_BYTES
CHUNK = chunks.DIGEST_CHUNK_BYTES


def reference_chunk(data: bytes) -> int:
    """The definition in docs and core/digest.py, word for word."""
    leaves = [xxhash.xxh3_64_intdigest(data[i : i + LEAF]) for i in range(0, len(data), LEAF)]
    return xxhash.xxh3_64_intdigest(struct.pack(f"<{len(leaves)}Q", *leaves))


def reference_table(data: bytes, chunk_bytes: int) -> bytes:
    chunks = [data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)]
    return struct.pack(f"<{len(chunks)}Q", *map(reference_chunk, chunks))


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes without a period of a leaf or a chunk, so that a leaf at a wrong place shows."""
    block = b"".join(xxhash.xxh3_128_digest(struct.pack("<QQ", seed, i)) for i in range(257))
    return (block * (size // len(block) + 1))[:size]


around_borders = st.builds(
    lambda border, delta: max(0, border + delta),
    st.sampled_from([0, LEAF, 2 * LEAF, 255 * LEAF, 256 * LEAF, 257 * LEAF, 512 * LEAF]),
    st.integers(-9, 9),
)


@settings(max_examples=60, deadline=None)
@given(size=around_borders, seed=st.integers(0, 3))
def test_a_chunk_of_any_size_has_the_defined_value(size: int, seed: int) -> None:
    data = pattern(size, seed)
    assert digest.chunk_digest(data) == reference_chunk(data)


@settings(max_examples=40, deadline=None)
@given(chunks=st.integers(0, 5), delta=st.integers(-9, 9), threads=st.integers(1, 9), leaves=st.sampled_from([1, 2, 3]))
def test_a_table_is_the_same_for_every_number_of_threads(chunks: int, delta: int, threads: int, leaves: int) -> None:
    chunk_bytes = leaves * LEAF
    data = pattern(max(0, chunks * chunk_bytes + delta))
    assert _native.chunk_digests(data, chunk_bytes, threads) == reference_table(data, chunk_bytes)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5000])
def test_the_table_of_an_arena(size: int) -> None:
    data = pattern(size)
    table = digest.chunk_digests(data, threads=2)
    assert table == reference_table(data, CHUNK)
    assert len(table) == 8 * chunks.chunk_count(size)
    assert digest.root_digest(table) == f"xxh3:{xxhash.xxh3_64_intdigest(table):016x}"


@given(data=st.binary(max_size=300))
def test_plain_xxh3(data: bytes) -> None:
    assert _native.xxh3_64(data) == xxhash.xxh3_64_intdigest(data)


@given(at=st.integers(0, 2 * LEAF), bit=st.integers(0, 7))
def test_a_flipped_bit_shows(at: int, bit: int) -> None:
    data = bytearray(pattern(2 * LEAF + 1))
    before = digest.chunk_digest(bytes(data))
    data[at] ^= 1 << bit
    assert digest.chunk_digest(bytes(data)) != before


def test_all_kinds_of_contiguous_buffers_are_taken() -> None:
    data = pattern(3 * LEAF + 7)
    expected = reference_chunk(data)
    with mmap.mmap(-1, len(data)) as region:
        region[:] = data
        assert _native.chunk_digest(region) == expected
        with memoryview(region) as view, view[:] as part, view.toreadonly() as read_only:
            assert _native.chunk_digest(part) == expected
            assert _native.chunk_digest(read_only) == expected
    assert _native.chunk_digest(bytearray(data)) == expected
    assert _native.chunk_digest(memoryview(data)[1:]) == reference_chunk(data[1:])


@pytest.mark.parametrize("call", [_native.xxh3_64, _native.chunk_digest, lambda d: _native.chunk_digests(d, LEAF, 1)])
def test_a_buffer_with_gaps_is_refused(call: object) -> None:
    assert callable(call)
    with pytest.raises(BufferError):
        call(memoryview(b"0123456789")[::2])
    with pytest.raises(TypeError):
        call("text")


@pytest.mark.parametrize("chunk_bytes", [0, -4096, 1, 4095, 4097])
def test_a_bad_chunk_size_is_refused(chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        _native.chunk_digests(b"x", chunk_bytes, 1)


@pytest.mark.parametrize("threads", [0, -1])
def test_a_bad_number_of_threads_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        _native.chunk_digests(b"x", LEAF, threads)


def test_the_buffer_stays_pinned_while_the_interpreter_runs_on() -> None:
    """The GIL is free during the call: another thread gets in, and can't move the memory away under it."""
    data = bytearray(32 << 20)
    refused, done = threading.Event(), threading.Event()

    def try_to_resize() -> None:
        while not done.is_set() and not refused.is_set():
            try:
                data.append(0)  # outside a call this works, and changes nothing that matters
                data.pop()
            except BufferError:
                refused.set()

    thread = threading.Thread(target=try_to_resize)
    thread.start()
    deadline = time.monotonic() + 60
    try:
        while not refused.is_set() and time.monotonic() < deadline:
            _native.chunk_digests(data, CHUNK, 1)
    finally:
        done.set()
        thread.join(30)
    assert refused.is_set(), "no other thread ran during a call: the GIL was held"
