"""What every device-memory backend must do (memory/base.py). `host` runs everywhere."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
from collections.abc import Iterator

import pytest

from flashboot_agent.core.errors import ArenaImmutable, BadRequest, CommitRefused, InsufficientMemory
from flashboot_agent.holder.client import HolderClient
from flashboot_agent.memory import memfd
from flashboot_agent.memory.base import DeviceMemory
from flashboot_agent.memory.host import HostMemoryBackend
from flashboot_agent.memory.probe import HostFacts
from tests.component.agents import MIB, Cluster

NAME = "arena-" + "1" * 32
OTHER = "arena-" + "2" * 32
SIZE = 2 * MIB + 512
SMALL = HostFacts(4096, "never", 0, 0, 2 * MIB)
TRANSPARENT = HostFacts(4096, "advise", 0, 0, 2 * MIB)


@pytest.fixture(scope="module")
def holder() -> Iterator[str]:
    cluster = Cluster()
    node = cluster.node("n1", start=False, budget=64 * MIB)
    node.start_holder()
    try:
        yield str(node.run / "holder/holder.sock")
    finally:
        cluster.close()


@pytest.fixture(params=["host-small", "host-transparent"])
def memory(request: pytest.FixtureRequest, holder: str) -> Iterator[DeviceMemory]:
    facts = {"host-small": SMALL, "host-transparent": TRANSPARENT}[request.param]
    backend = HostMemoryBackend(HolderClient(holder), lambda: facts)
    yield backend
    for arena in backend.inventory():
        backend.free(arena)


def test_allocated_memory_is_zero_and_written_through_every_handle(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    assert region.nbytes == SIZE
    with region.map(writable=True) as mine, region.map(writable=False) as reader:
        assert (len(mine.view), bytes(mine.view[:16])) == (SIZE, bytes(16))
        mine.view[SIZE - 3 :] = b"end"
        fd = region.export(writable=True)
        with mmap.mmap(fd, SIZE) as client:
            client[:5] = b"hello"
        os.close(fd)
        assert bytes(reader.view[:5]) + bytes(reader.view[-3:]) == b"helloend"
        assert reader.view.readonly
    region.close()


def test_a_seal_is_refused_while_anybody_maps_for_writing_and_then_holds_for_all(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    fd = region.export(writable=True)
    client = mmap.mmap(fd, SIZE)
    with region.map(writable=False), pytest.raises(CommitRefused, match=NAME):
        region.seal()
    assert not region.sealed
    client.close()
    with region.map(writable=False):  # readers don't stand in the way
        region.seal()
    region.seal()  # again changes nothing
    assert region.sealed
    with pytest.raises(PermissionError):
        mmap.mmap(fd, SIZE)  # the handle that could write before
    for write in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 2 * SIZE)):
        with pytest.raises(PermissionError):
            write()
    os.close(fd)
    with pytest.raises(CommitRefused):
        region.export(writable=True)
    with pytest.raises(CommitRefused):
        region.map(writable=True)
    read_only = region.export(writable=False)
    with mmap.mmap(read_only, SIZE, prot=mmap.PROT_READ) as view:
        assert view[:1] == b"\0"
    os.close(read_only)
    region.close()


def test_updatable_memory_is_written_in_place_by_who_asks_for_that_and_by_no_reader(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    with pytest.raises(ArenaImmutable, match="not sealed yet"):
        region.map_for_update()
    region.seal(updatable=True)
    region.seal(updatable=True)  # again changes nothing
    assert (region.sealed, region.updatable) == (True, True)
    for refused in (lambda: region.export(writable=True), lambda: region.map(writable=True)):
        with pytest.raises(CommitRefused):
            refused()
    reader = region.export(writable=False)
    with mmap.mmap(reader, SIZE, prot=mmap.PROT_READ) as view, region.map_for_update() as mapping:
        mapping.view[:3] = b"new"
        assert view[:3] == b"new"
        for write in (lambda: mmap.mmap(reader, SIZE), lambda: os.pwrite(reader, b"x", 0)):
            with pytest.raises(OSError, match=r"denied|descriptor"):
                write()
        with pytest.raises(PermissionError):  # a reader can't keep the next update off
            fcntl.fcntl(reader, fcntl.F_ADD_SEALS, memfd.F_SEAL_WRITE)
    os.close(reader)
    region.close()
    again = memory.adopt(NAME)
    assert again is not None
    assert (again.sealed, again.updatable) == (True, True)
    again.close()


def test_immutable_memory_is_never_updatable(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    region.seal()
    assert (region.sealed, region.updatable) == (True, False)
    with pytest.raises(ArenaImmutable, match="updatable: true"):
        region.map_for_update()
    with pytest.raises(CommitRefused, match="sealed it in another way"):
        region.seal(updatable=True)
    region.close()


def test_a_writer_can_change_neither_the_size_nor_who_may_seal(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    fd = region.export(writable=True)
    for size in (0, SIZE - 1, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    os.close(fd)
    with pytest.raises(CommitRefused, match="forbade further seals"):
        region.seal()
    region.close()


def test_what_the_holder_kept_is_adopted_with_its_bytes_and_its_seal(memory: DeviceMemory) -> None:
    assert memory.adopt(NAME) is None
    region = memory.allocate(NAME, SIZE)
    with region.map(writable=True) as mapping:
        mapping.view[:4] = b"kept"
    os.pwrite(region.record, b"note", 0)
    region.seal()
    region.close()
    again = memory.adopt(NAME)
    assert again is not None
    assert (again.arena, again.nbytes, again.sealed) == (NAME, SIZE, True)
    with again.map(writable=False) as mapping:
        assert bytes(mapping.view[:4]) == b"kept"
    assert os.pread(again.record, 4, 0) == b"note"
    again.close()
    again.close()


def test_a_mapping_outlives_free_and_closes_once(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    mapping = region.map(writable=False)
    region.close()
    memory.free(NAME)
    memory.free(NAME)
    assert memory.inventory() == []
    piece = mapping.view[:4]
    with pytest.raises(BufferError):
        mapping.close()
    assert bytes(piece) == bytes(4)
    piece.release()
    mapping.close()
    mapping.close()


def test_a_name_is_taken_once_and_the_budget_is_kept(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, 40 * MIB)
    with pytest.raises(BadRequest, match="exists already"):
        memory.allocate(NAME, SIZE)
    with pytest.raises(
        InsufficientMemory, match=rf"needs {30 * MIB} bytes; of the budget of {64 * MIB} bytes {24 * MIB}"
    ):
        memory.allocate(OTHER, 30 * MIB)
    assert memory.inventory() == [NAME]
    memory.free(NAME)
    region.close()
    memory.allocate(OTHER, 60 * MIB).close()


def test_a_lost_handle_is_deposited_again(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    memory.deposit(region)  # it is there
    memory.free(NAME)
    memory.deposit(region)
    assert memory.inventory() == [NAME]
    region.close()


def test_all_pages_are_present_before_anybody_maps(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)
    fd = region.export(writable=False)
    assert os.fstat(fd).st_blocks * 512 >= SIZE
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    os.close(fd)
    region.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_cannot_turn_a_read_only_handle_into_a_writable_one(memory: DeviceMemory) -> None:
    region = memory.allocate(NAME, SIZE)  # not even before the seal
    fd = region.export(writable=False)
    client = subprocess.run(
        ["/bin/sh", "-c", f"exec 9<>/proc/self/fd/{fd}"],
        user=65534,
        group=65534,
        extra_groups=[],
        pass_fds=[fd],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert client.returncode != 0
    assert b"Permission denied" in client.stderr
    os.close(fd)
    region.close()


def test_a_document_is_immutable() -> None:
    fd = memfd.sealed_copy("document", b"text")
    assert os.pread(fd, 10, 0) == b"text"
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    os.close(fd)
