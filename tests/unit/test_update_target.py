"""Updating an arena: in which order bars, pauses, records and bytes come, and what is there when something fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import (
    ArenaInUse,
    ArenaUpdating,
    DeadlineExceeded,
    DeltaDamaged,
    DiskFull,
    FlashBootError,
    from_problem,
)
from flashboot_agent.core.identity import digest_of
from flashboot_agent.delta import arena as arena_module
from flashboot_agent.delta.file import Delta, open_delta
from flashboot_agent.delta.make import Versions, make
from flashboot_agent.delta.source import MemorySource
from flashboot_agent.delta.words import of_layout
from flashboot_agent.memory import memfd
from flashboot_agent.memory.host import HostRegion, Kept
from flashboot_agent.node import update_target
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.pause import Engine, paused
from flashboot_agent.node.record import ArenaRecord, Between, RecordDamaged, RecordFile
from flashboot_agent.node.unfinished import settle
from flashboot_agent.node.update_target import ArenaTarget, Torn
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.base import now
from flashboot_agent.wire.layout import Layout
from tests.component.agents import IDENTITY, layout_for
from tests.deltas import stepped_version, weights

NBYTES = 9 << 20
"""Two windows."""
LAYOUT = layout_for(NBYTES)
BASE = weights(NBYTES, 0)
NEW = stepped_version(BASE, 0, 0.01)
NAME = "arena-" + "1" * 32


def of(data: bytes) -> MemorySource:
    meta = ArenaMeta(NAME, digest_of(IDENTITY), NBYTES, LAYOUT, chunk_digests(data), "xxh3:" + "0" * 16)
    return MemorySource(memoryview(data), of_layout(Layout.from_bytes(LAYOUT)), meta.layout_digest)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deltas") / "0-1.delta"
    make(of(BASE), of(NEW), path, Versions(0, 1))
    return path


@pytest.fixture
def delta(published: Path) -> Iterator[Delta]:
    with open_delta(published, None) as delta:
        yield delta


@pytest.fixture
def arena() -> Iterator[Arena]:
    region = HostRegion(NAME, Kept(memfd.create(NAME, NBYTES), memfd.create("record", 8 << 20), NBYTES))
    record = ArenaRecord(
        arena=NAME,
        namespace="serving",
        model_replica="m",
        model_replica_uid="11111111-2222",
        expected_identity="sha256:" + "0" * 64,
        way="load",
        state="allocated",
        bytes=NBYTES,
        updatable=True,
        created_at=now(),
    )
    arena = Arena(region, RecordFile(region.record), record, lambda: None)
    arena.save()
    digests = chunk_digests(BASE)
    arena.adopt_documents(ArenaMeta(NAME, digest_of(IDENTITY), NBYTES, LAYOUT, digests, root_digest(digests)), now())
    with region.map(writable=True) as mapping:
        mapping.view[:] = BASE
    arena.marks.fill()
    arena.seal_clone()
    yield arena
    arena.revoke(0)


class Rank:
    """An engine's rank, which notes when it is asked, acknowledges and goes on, and what the arena was then."""

    def __init__(self, name: str, host: Host) -> None:
        self._name, self._host = name, host
        self.late = False

    def __str__(self) -> str:
        return self._name

    def pause(self) -> None:
        self._host.note(f"{self} asked")

    def wait_paused(self, seconds: float) -> None:
        if self.late:
            raise DeadlineExceeded(f"{self} has not paused within {seconds:.0f} s")
        self._host.note(f"{self} paused")

    def resume(self) -> None:
        self._host.note(f"{self} resumed")


class Host:
    """Of an update (update_target.py)."""

    def __init__(self, arena: Arena, names: Sequence[str] = ()) -> None:
        self._arena = arena
        self.notes: list[tuple[str, str]] = []
        """What happened, and what the arena's bytes were then."""
        self.engines = [Rank(name, self) for name in names]
        self.fails: dict[str, BaseException] = {}

    def note(self, what: str) -> None:
        data = bytes(self._arena.whole())
        self.notes.append((what, {BASE: "base", NEW: "new"}.get(data, "neither")))

    def begin(self, arena: Arena, between: Between) -> Sequence[Engine]:
        if error := self.fails.get("begin"):
            raise error
        arena.begin_update(between, "it is being updated")
        return self.engines

    def begun(self) -> None:
        self.note("begun")

    def served(self) -> None:
        self.note("served")

    def point(self, step: str) -> None:
        self.note(step)
        if error := self.fails.get(step):
            raise error

    def left(self) -> float:
        return 5.0


def target(arena: Arena, host: Host, folder: Path) -> ArenaTarget:
    return ArenaTarget(arena, "n1", folder, host, 0.05)


def require(arena: Arena, version: int, data: bytes) -> None:
    """Memory, record and documents are of this version, and it is served."""
    digests = chunk_digests(data)
    file = RecordFile(arena.region.record)
    record = file.load()
    assert bytes(arena.whole()) == data
    assert (record.state, record.version, record.digest, record.between) == (
        "sealed",
        version,
        root_digest(digests),
        None,
    )
    assert file.load_documents(record) == (LAYOUT, digests)
    assert (arena.meta.version, arena.meta.chunk_digests) == (version, digests)
    arena.lease("n2")
    arena.release("n2")


def test_no_byte_changes_before_every_rank_has_paused_and_all_go_on_with_the_new_version(
    arena: Arena, delta: Delta, tmp_path: Path
) -> None:
    host = Host(arena, ["tp0", "tp1"])
    target(arena, host, tmp_path).apply(delta)
    names = [what for what, _ in host.notes]
    before = ["tp0 asked", "tp1 asked", "tp0 paused", "tp1 paused", "begun"]
    assert names[:5] == before
    assert names[-3:] == ["tp1 resumed", "tp0 resumed", "served"]
    assert {data for what, data in host.notes[:7]} == {"base"}
    assert {data for what, data in host.notes[-3:]} == {"new"}
    require(arena, 1, NEW)


def test_a_rank_that_does_not_pause_in_time_ends_it_and_all_that_were_asked_go_on(
    arena: Arena, delta: Delta, tmp_path: Path
) -> None:
    host = Host(arena, ["tp0", "tp1"])
    host.engines[1].late = True
    with pytest.raises(DeadlineExceeded, match="tp1 has not paused"):
        target(arena, host, tmp_path).apply(delta)
    assert [what for what, _ in host.notes] == ["tp0 asked", "tp1 asked", "tp0 paused", "tp1 resumed", "tp0 resumed"]
    require(arena, 0, BASE)


@pytest.mark.parametrize("step", ["located", "appended", "kept", "reverse written", "reverse named"])
def test_what_fails_in_the_midst_is_put_back_before_engines_go_on(
    arena: Arena, delta: Delta, tmp_path: Path, step: str
) -> None:
    host = Host(arena, ["tp0"])
    host.fails[step] = OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        target(arena, host, tmp_path).apply(delta)
    assert host.notes[-1] == ("tp0 resumed", "base")
    require(arena, 0, BASE)
    host.fails.clear()
    target(arena, host, tmp_path).apply(delta)
    require(arena, 1, NEW)


def test_a_full_disk_is_told_with_the_versions_and_the_arena_is_as_before(
    arena: Arena, delta: Delta, tmp_path: Path
) -> None:
    host = Host(arena)
    host.fails["appended"] = OSError(28, "No space left on device")
    with pytest.raises(DiskFull, match="0 → 1"):
        target(arena, host, tmp_path).apply(delta)
    require(arena, 0, BASE)
    assert not list((tmp_path / "journal").iterdir())


def test_what_can_not_be_put_back_is_told_as_torn_and_never_served(
    arena: Arena, delta: Delta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(arena)

    def broken(*_: object, **__: object) -> None:
        raise DeltaDamaged("the journal is gone")

    monkeypatch.setattr(arena_module.Update, "back", broken)
    monkeypatch.setattr(update_target, "put_back", broken)
    host.fails["reverse written"] = OSError(5, "Input/output error")
    with pytest.raises(Torn, match=f"{NAME} on node n1.*the journal is gone"):
        target(arena, host, tmp_path).apply(delta)
    assert arena.state == "updating"
    with pytest.raises(ArenaUpdating):
        arena.lease("n2")


def test_readers_are_waited_for_and_new_ones_are_told_why(arena: Arena, delta: Delta, tmp_path: Path) -> None:
    host = Host(arena)
    arena.lease("n2")
    with pytest.raises(ArenaInUse, match="still read by n2"):
        target(arena, host, tmp_path).apply(delta)
    assert host.notes == []
    arena.release("n2")
    require(arena, 0, BASE)

    def somebody_comes(step: str) -> None:
        with pytest.raises(ArenaUpdating, match="being updated") as told:
            arena.lease("n3")
        assert type(from_problem(told.value.problem())) is ArenaUpdating
        with pytest.raises(ArenaUpdating), arena.reading():
            pass

    host.point = somebody_comes  # type: ignore[method-assign]
    target(arena, host, tmp_path).apply(delta)
    require(arena, 1, NEW)


def test_an_arena_that_somebody_has_is_left_alone(arena: Arena, delta: Delta, tmp_path: Path) -> None:
    host = Host(arena)
    host.fails["begin"] = ArenaInUse("a pod has it")
    with pytest.raises(ArenaInUse):
        target(arena, host, tmp_path).apply(delta)
    require(arena, 0, BASE)


def test_an_update_ends_as_one_of_its_two_versions_only(arena: Arena) -> None:
    between = Between(base=0, new=1, base_digest=root_digest(chunk_digests(BASE)), new_digest="xxh3:" + "1" * 16)
    with pytest.raises(ValueError, match="can't go from sealed to sealed"):
        arena.end_update(0, chunk_digests(BASE))
    arena.begin_update(between, "why")
    with pytest.raises(ValueError, match="can't become version 1"):
        arena.end_update(1, chunk_digests(NEW))
    arena.end_update(0, chunk_digests(BASE))
    require(arena, 0, BASE)


@contextmanager
def found_between(arena: Arena, data: bytes) -> Iterator[Arena]:
    """As the next agent finds it, with these bytes."""
    digests = [root_digest(chunk_digests(each)) for each in (BASE, NEW)]
    arena.begin_update(Between(base=0, new=1, base_digest=digests[0], new_digest=digests[1]), "why")
    with arena.region.map_for_update() as mapping:
        mapping.view[:] = data
    yield arena


@pytest.mark.parametrize(("data", "version"), [(BASE, 0), (NEW, 1)], ids=["base", "new"])
def test_what_is_found_between_versions_is_what_its_bytes_say(
    arena: Arena, tmp_path: Path, data: bytes, version: int
) -> None:
    with found_between(arena, data):
        settle(arena, tmp_path)
    require(arena, version, data)


def test_what_is_neither_version_is_not_believed(arena: Arena, tmp_path: Path) -> None:
    with (
        found_between(arena, BASE[: NBYTES // 2] + NEW[NBYTES // 2 :]),
        pytest.raises(RecordDamaged, match="bytes are of neither version"),
    ):
        settle(arena, tmp_path)


def test_every_engine_that_was_asked_goes_on_though_another_one_fails() -> None:
    done: list[str] = []

    class Broken:
        def __init__(self, name: str) -> None:
            self._name = name

        def pause(self) -> None:
            done.append(f"{self._name} asked")
            if self._name == "b":
                raise FlashBootError("b is gone")

        def wait_paused(self, seconds: float) -> None:
            raise AssertionError("nobody is waited for")

        def resume(self) -> None:
            done.append(f"{self._name} resumed")
            if self._name == "b":
                raise FlashBootError("b is gone still")

    with pytest.raises(FlashBootError, match="still"), paused([Broken("a"), Broken("b"), Broken("c")], 1):
        raise AssertionError("nothing is written")
    assert done == ["a asked", "b asked", "b resumed", "a resumed"]
