"""A spool believes what the chain names, however it comes and whatever is wrong with it."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent.core.errors import DeltaDamaged, DeltaUntrusted
from flashboot_agent.sync.chain import Step
from flashboot_agent.sync.origin import DirectoryOrigin
from flashboot_agent.sync.publisher import Publisher
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.sync.spool import Spool, part_name
from flashboot_agent.sync.tensors import TensorPlaces, TensorSpec
from tests.syncs import publish

NBYTES = 300_000
"""Five spans."""


@cache
def published() -> tuple[bytes, Step]:
    with tempfile.TemporaryDirectory() as folder:
        with Publisher(Path(folder, "p"), TensorPlaces({"w": TensorSpec("U8", (NBYTES,))})) as publisher:
            for version in (0, 1):
                publish(publisher, version, {"w": os.urandom(NBYTES)})
        (step,) = Receiver(DirectoryOrigin(Path(folder, "p")), Path(folder, "s"), None).chain().steps
        return Path(folder, "p", step.file).read_bytes(), step


def fed(spool: Spool, data: bytes, cuts: list[int]) -> None:
    """From where it is to the end, in pieces."""
    ends = sorted({cut for cut in cuts if spool.have < cut < len(data)} | {len(data)})
    for end in ends:
        spool.feed(data[spool.have : end])


places = st.integers(0, NBYTES)


@settings(max_examples=150, deadline=None)
@given(cuts=st.lists(places, max_size=8), flips=st.lists(places, max_size=3), stop=places)
def test_only_what_was_published_is_verified_and_the_rest_comes_again(
    cuts: list[int], flips: list[int], stop: int
) -> None:
    data, step = published()
    damaged = bytearray(data)
    for at in flips:
        damaged[at % len(data)] ^= 1 + at % 255
    with tempfile.TemporaryDirectory() as folder, Spool(Path(folder), step, None, "it") as spool:
        refused = False
        try:
            fed(spool, bytes(damaged[:stop]) or b"", cuts)
            fed(spool, bytes(damaged), cuts)
        except (DeltaDamaged, DeltaUntrusted):
            refused = True
        assert refused == (bytes(damaged) != data)
        assert spool.whole == (not refused)
        assert os.pread(spool.fd, spool.verified, 0) == data[: spool.verified]
        assert spool.have <= len(data)
        while not spool.whole:
            before = spool.have
            fed(spool, data, cuts)
            assert spool.have > before
        assert os.pread(spool.fd, len(data) + 1, 0) == data


@settings(max_examples=100, deadline=None)
@given(size=st.integers(0, NBYTES + 4000), flips=st.lists(places, max_size=3), more=st.binary(max_size=100))
def test_what_another_process_left_is_taken_up_as_far_as_it_is_right(size: int, flips: list[int], more: bytes) -> None:
    data, step = published()
    left = bytearray(data[:size] + more)
    for at in flips:
        if left:
            left[at % len(left)] ^= 1 + at % 255
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, part_name(step)).write_bytes(left)
        with Spool(Path(folder), step, None, "it") as spool:
            spool.take_up()
            right = next((at for at, (a, b) in enumerate(zip(left, data, strict=False)) if a != b), len(left))
            assert spool.verified <= right
            assert spool.have - spool.verified <= max(1 << 16, spool.header.bodies_at if spool.header else 64)
            assert os.fstat(spool.fd).st_size == spool.have
            try:
                fed(spool, data, [])
            except DeltaDamaged:  # a part of a span was wrong, and is only now compared
                fed(spool, data, [])
            assert spool.whole
            assert os.pread(spool.fd, len(data) + 1, 0) == data
