"""The chunk protocol's parser: what is encoded comes back, and no bytes whatever break anything but the stream."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.wire import frames
from flashboot_agent.wire.frames import (
    Data,
    Frame,
    FrameError,
    FrameParser,
    MetaReply,
    MetaRequest,
    NixlTarget,
    Pull,
    Trouble,
    encode,
)
from flashboot_agent.wire.problem import Problem

arena_ids = st.from_regex(r"\Aarena-[0-9a-f]{32}\Z")
names = st.from_regex(r"\A[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?\Z")
digests = st.one_of(st.from_regex(r"\Asha256:[0-9a-f]{64}\Z"), st.from_regex(r"\Axxh3:[0-9a-f]{16}\Z"))
offsets = st.integers(0, 1 << 49)


@st.composite
def metas(draw: st.DrawFn) -> MetaReply:
    nbytes = draw(st.integers(1, 1 << 40))
    chunk = draw(st.sampled_from([1 << 20, 4 << 20]))
    return MetaReply(
        identity=draw(digests),
        nbytes=nbytes,
        digest=draw(digests),
        digest_chunk_bytes=chunk,
        digests_bytes=8 * -(-nbytes // chunk),
        layout_bytes=draw(st.integers(0, 64 << 20)),
        layout_digest=draw(digests),
    )


@st.composite
def nixl_targets(draw: st.DrawFn) -> NixlTarget:
    return NixlTarget(
        agent=draw(st.from_regex(r"\Aflashboot-[0-9a-f]{32}\Z")),
        start=draw(offsets),
        nbytes=draw(st.integers(1, frames.MAX_ARENA)),
        address=draw(st.integers(1, (1 << 64) - 1)),
        metadata_bytes=draw(st.integers(1, frames.MAX_NIXL_METADATA)),
    )


@st.composite
def datas(draw: st.DrawFn) -> Data:
    offset, length = draw(offsets), draw(st.integers(0, frames.MAX_PULL))
    return Data(offset, offset + length + draw(st.integers(0, 1 << 30)), length)


some_frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(MetaRequest, arena=arena_ids, child=names, carrier=st.sampled_from(["stream", "nixl"])),
    metas(),
    st.builds(Pull, offset=offsets, length=st.integers(1, frames.MAX_PULL), wait_ms=st.integers(0, 60_000)),
    datas(),
    nixl_targets(),
    st.builds(Trouble, st.builds(Problem, reason=st.just("NotReady"), message=st.text(max_size=4096))),
)


def parse(data: bytes, cut: int = 1 << 20) -> tuple[list[Frame], FrameParser]:
    """Feed `data` in pieces of at most `cut` bytes, tails left out (there are none in `data`)."""
    parser, found, at = FrameParser(), [], 0
    while at < len(data):
        step = min(parser.wants, cut)
        frame = parser.feed(data[at : at + step])
        at += step
        if frame is not None:
            found.append(frame)
    return found, parser


@given(st.lists(some_frames, max_size=4), st.integers(1, 64))
def test_what_is_encoded_comes_back_however_it_is_cut(sent: list[Frame], cut: int) -> None:
    found, parser = parse(b"".join(map(encode, sent)), cut)
    assert found == sent
    assert parser.idle


@given(some_frames, st.data())
def test_a_truncated_frame_is_never_a_frame(frame: Frame, data: st.DataObject) -> None:
    whole = encode(frame)
    cut = data.draw(st.integers(1, len(whole) - 1))
    found, parser = parse(whole[:cut])
    assert found == []
    assert not parser.idle
    assert 0 < parser.wants <= frames.MAX_TROUBLE


@given(some_frames, st.data())
def test_any_mutation_gives_a_valid_frame_or_a_frame_error(frame: Frame, data: st.DataObject) -> None:
    mutated = bytearray(encode(frame))
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    only_frames_or_frame_error(bytes(mutated))


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_give_frames_or_a_frame_error(noise: bytes, with_magic: bool) -> None:
    only_frames_or_frame_error((frames.MAGIC + bytes([frames.VERSION]) if with_magic else b"") + noise)


@given(st.integers(1, 6), st.binary(max_size=1024))
def test_any_body_gives_a_valid_frame_or_a_frame_error(kind: int, body: bytes) -> None:
    only_frames_or_frame_error(struct.pack("<4sBBHI", frames.MAGIC, frames.VERSION, kind, 0, len(body)) + body)


def only_frames_or_frame_error(data: bytes) -> None:
    parser = FrameParser()
    at = 0
    while at < len(data):
        assert 0 < parser.wants <= frames.MAX_TROUBLE, "memory is bounded by the largest body"
        step = parser.wants
        try:
            frame = parser.feed(data[at : at + step])
        except FrameError:
            return
        at += step
        if frame is not None:
            _, again = parse(encode(frame))
            assert again.idle, "what the parser gives can be encoded again"


@pytest.mark.parametrize(
    ("kind", "length"),
    [(1, 1025), (2, 1 << 31), (3, 15), (3, 17), (4, 21), (5, frames.MAX_TROUBLE + 1), (5, 2**32 - 1)],
)
def test_a_length_beyond_the_limit_is_refused_before_a_byte_of_the_body(kind: int, length: int) -> None:
    parser = FrameParser()
    with pytest.raises(FrameError, match=f"frame of {length} bytes"):
        parser.feed(struct.pack("<4sBBHI", frames.MAGIC, frames.VERSION, kind, 0, length))


def test_another_protocol_is_refused_at_its_first_byte() -> None:
    with pytest.raises(FrameError, match="no chunk protocol"):
        FrameParser().feed(b"G")
    with pytest.raises(FrameError, match="version 1"):
        FrameParser().feed(struct.pack("<4sBBHI", frames.MAGIC, 1, 3, 0, 16))


def test_data_beyond_the_senders_watermark_is_refused() -> None:
    with pytest.raises(FrameError, match="beyond the sender's own watermark"):
        parse(encode(Data(offset=100, watermark=150, length=51)))
    assert parse(encode(Data(offset=100, watermark=50, length=0)))[0] == [Data(100, 50, 0)]


def test_a_digest_table_of_a_wrong_length_is_refused_before_it_is_read() -> None:
    reply = MetaReply(
        identity="sha256:" + "0" * 64,
        nbytes=5 << 20,
        digest="xxh3:" + "0" * 16,
        digest_chunk_bytes=1 << 20,
        digests_bytes=40,
        layout_bytes=3,
        layout_digest="sha256:" + "0" * 64,
    )
    good = encode(reply)
    assert parse(good)[0] == [reply]
    with pytest.raises(FrameError, match="digest table of 48 bytes"):
        parse(good.replace(b'"digestsBytes":40', b'"digestsBytes":48'))


def test_the_longest_problem_fits() -> None:
    trouble = Trouble(Problem(reason="Internal", message="\x01" * 4096))
    assert parse(encode(trouble))[0] == [trouble]
