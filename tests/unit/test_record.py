"""The record beside an arena: whatever write a kill cuts off, the last whole header is read, or none."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent._native import BYTES_IN, BYTES_OUT, REFETCHED
from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.identity import document_digest
from flashboot_agent.memory import memfd
from flashboot_agent.node import record
from flashboot_agent.node.record import ArenaRecord, RecordDamaged, RecordFile
from flashboot_agent.wire.base import now

FIRST = ArenaRecord(
    arena="arena-" + "a" * 32,
    namespace="serving",
    model_replica="tiny",
    model_replica_uid="11111111-2222",
    expected_identity="sha256:" + "0" * 64,
    way="clone",
    state="allocated",
    bytes=3 << 20,
    created_at=now(),
)
DATA = bytes(range(256)) * (3 << 12)


@pytest.fixture
def fd() -> Iterator[int]:
    fd = memfd.create("record", 256 << 20)
    yield fd
    os.close(fd)


def test_the_last_header_is_read(fd: int) -> None:
    file = RecordFile(fd)
    for state in ("allocated", "filling", "sealed"):
        file.save(FIRST.model_copy(update={"state": state}))
        found = RecordFile(fd).load()
        assert (found.state, found.arena) == (state, FIRST.arena)
    again = RecordFile(fd)
    again.load()
    again.save(FIRST)  # generations go on after a restart
    assert RecordFile(fd).load().state == "allocated"


def test_a_record_that_was_never_written_is_damaged(fd: int) -> None:
    with pytest.raises(RecordDamaged, match="never written"):
        RecordFile(fd).load()


@given(cut=st.integers(min_value=0, max_value=600), saved=st.integers(min_value=1, max_value=4))
def test_a_torn_header_gives_the_one_before(cut: int, saved: int) -> None:
    fd = memfd.create("record", 256 << 20)
    try:
        file = RecordFile(fd)
        for number in range(saved):
            file.save(FIRST.model_copy(update={"bytes": number + 1}))
        torn = memfd.create("next", 256 << 20)
        try:
            os.pwrite(torn, os.pread(fd, record.DOCUMENTS, 0), 0)
            next_file = RecordFile(torn)
            next_file.load()
            next_file.save(FIRST.model_copy(update={"bytes": 999}))
            slot = record.SLOTS[(saved + 1) % 2]
            whole = record.HEAD.size + len(FIRST.model_copy(update={"bytes": 999}).to_json())
            os.pwrite(fd, os.pread(torn, min(cut, whole), slot), slot)
        finally:
            os.close(torn)
        assert RecordFile(fd).load().bytes == (999 if cut >= whole else saved)
    finally:
        os.close(fd)


def test_documents_are_believed_only_with_their_digests(fd: int) -> None:
    file = RecordFile(fd)
    layout, digests = b'{"identity":{}}', chunk_digests(DATA)
    known = FIRST.model_copy(
        update={
            "layout_bytes": len(layout),
            "layout_digest": document_digest(layout),
            "digests_bytes": len(digests),
            "digest": root_digest(digests),
        }
    )
    file.save_documents(layout, digests)
    assert file.load_documents(known) == (layout, digests)
    os.pwrite(fd, b"!", record.DOCUMENTS)
    with pytest.raises(RecordDamaged, match="layout"):
        file.load_documents(known)
    file.save_documents(layout, digests)
    os.pwrite(fd, b"!", record.DOCUMENTS + len(layout))
    with pytest.raises(RecordDamaged, match="chunk digests"):
        file.load_documents(known)
    with pytest.raises(RecordDamaged):
        file.load_documents(FIRST)


def test_marks_live_beside_the_header_and_outlive_it(fd: int) -> None:
    file, lanes = RecordFile(fd), FIRST.model_copy(update={"lanes": 3})
    file.save(lanes)
    marks = file.marks(lanes)
    marks.set_received(1, (1 << 20) + 5)
    marks.set_verified(2, 3 << 20)
    for counter in (BYTES_IN, BYTES_OUT, REFETCHED):
        marks.add(counter, 10 + counter)
    file.save(lanes.model_copy(update={"state": "filling"}))
    again = RecordFile(fd)
    kept = again.marks(again.load())
    assert [(kept.verified(lane), kept.received(lane)) for lane in range(3)] == [
        (0, 0),
        (1 << 20, (1 << 20) + 5),
        (3 << 20, 3 << 20),
    ]
    assert [kept.counter(counter) for counter in (BYTES_IN, BYTES_OUT, REFETCHED)] == [12, 13, 14]


def test_a_record_from_before_there_were_lanes_is_one_of_one_lane(fd: int) -> None:
    """As the agent of the first release left it: an upgraded one loses no arena, and goes on where that one stopped."""
    text = FIRST.model_copy(update={"state": "filling"}).to_json().replace(b'"lanes":1,', b"")
    assert b"lanes" not in text
    checksum = hashlib.blake2b((1).to_bytes(8, "little") + text, digest_size=8).digest()
    os.pwrite(fd, struct.pack("<QQ8s", 1, len(text), checksum) + text, 2 << 20)
    os.pwrite(fd, struct.pack("=5Q", 2 << 20, (2 << 20) + 7, (2 << 20) + 8, 5, 1), 64)
    os.pwrite(fd, b"FBRECRD1", 0)
    file = RecordFile(fd)
    record = file.load()
    marks = file.marks(record)
    assert (record.state, record.lanes) == ("filling", 1)
    assert (marks.verified(0), marks.received(0)) == (2 << 20, (2 << 20) + 7)
    assert [marks.counter(counter) for counter in (BYTES_IN, BYTES_OUT, REFETCHED)] == [(2 << 20) + 8, 5, 1]


@pytest.mark.parametrize("words", [(4 << 20, 4 << 20), (2 << 20, 1 << 20), (0, 4 << 20)])
def test_marks_that_make_no_sense_damage_the_record(fd: int, words: tuple[int, int]) -> None:
    os.pwrite(fd, struct.pack("=2Q", *words), 64)
    with pytest.raises(RecordDamaged, match="marks"):
        RecordFile(fd).marks(FIRST)


def test_fields_of_a_later_version_are_ignored() -> None:
    text = FIRST.to_json().replace(b'{"schemaVersion"', b'{"lanesOfLater":2,"schemaVersion"')
    assert ArenaRecord.model_validate_json(text).arena == FIRST.arena
