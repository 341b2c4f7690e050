"""One node, a real holder and a real agent: seed, attach, refusals, what is left behind."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.identity import digest_of
from flashboot_agent.memory import memfd
from flashboot_agent.wire import attach
from flashboot_agent.wire.layout import MAX_LAYOUT
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem
from tests.component.agents import ARENA, IDENTITY, MIB, Cluster, Engine, Node, eventually, layout_for, mapped, wanted

DATA = os.urandom(3 * MIB + 512)


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    cluster = Cluster()
    try:
        yield cluster.node("n1")
    finally:
        cluster.close()


def seeded(node: Node, data: bytes = DATA) -> str:
    """A node whose pod seeded the arena; the pod's UID."""
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        engine.seed(data)
        eventually(lambda: (pod := node.pod(uid)) and pod.phase == "attached", "seed attached")
    return uid


def test_a_seed_is_sealed_digested_and_handed_to_a_second_pod(node: Node) -> None:
    first, second = node.publish(), node.publish()
    node.want(wanted("seed", seed_pod=first, pods=[first, second]))
    with node.engine(first) as seed, node.engine(second) as other:
        ready = seed.seed(DATA)
        assert ready.digest == root_digest(chunk_digests(DATA))
        assert ready.identity == digest_of(IDENTITY)
        got, data = other.attach()
        assert data == DATA
        assert got == ready
        eventually(lambda: all(pod.phase == "attached" for pod in node.observed().pods), "both attached")
        pods = node.observed().pods
        assert {pod.uid: [rank.way for rank in pod.ranks] for pod in pods} == {first: ["seed"], second: ["clone"]}
        assert all(pod.ranks[0].arena == ARENA and pod.hello_at and pod.attached_at for pod in pods)
        arena = node.until_sealed()
        assert (arena.way, arena.bytes, arena.watermark, arena.digest) == ("seed", len(DATA), len(DATA), ready.digest)
        assert sorted(arena.pods) == sorted([first, second])
    eventually(lambda: all(pod.phase == "published" for pod in node.observed().pods), "engines gone")


def test_a_client_cannot_change_a_sealed_arena_by_any_way(node: Node) -> None:
    uid = seeded(node)
    with node.engine(uid) as engine:
        ready, fds = engine.until(attach.Ready)
        for fd, size in ((fds[0], ready.bytes), (fds[1], os.fstat(fds[1]).st_size)):
            with pytest.raises(PermissionError):
                mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(fd, b"x")
            with pytest.raises(OSError, match="Invalid argument"):
                os.ftruncate(fd, 1)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.posix_fallocate(fd, 0, 2 * size)
            # Root may re-open it for writing; the seal holds even then.
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            with pytest.raises(PermissionError):
                os.write(again, b"x")
            with pytest.raises(PermissionError):
                os.ftruncate(again, 1)
            assert os.fstat(again).st_mode & 0o777 == 0o600
            os.close(again)
            os.close(fd)


def test_a_commit_is_refused_while_the_plug_in_maps_the_arena_for_writing(node: Node) -> None:
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        fd = engine.allocate(len(DATA))
        with mapped(fd, mmap.PROT_READ | mmap.PROT_WRITE) as arena:
            arena[: len(DATA)] = DATA
            engine.commit(layout_for(len(DATA)))
            refused, _ = engine.until(attach.Refused)
            assert refused.problem.reason == "CommitRefused"
            assert ARENA in refused.problem.message
            seen = node.arena()
            assert seen is not None
            assert seen.state == "seeding"
        engine.commit(layout_for(len(DATA)))
        ready, _ = engine.until(attach.Ready)
        assert ready.digest == root_digest(chunk_digests(DATA))


@pytest.mark.parametrize(
    ("layout", "reason", "says"),
    [
        (layout_for(len(DATA), {**IDENTITY, "dtype": "float8"}), "IdentityMismatch", "dtype: engine 'bfloat16'"),
        (layout_for(len(DATA) + 512), "BadRequest", "arena has"),
        (b"{}", "BadRequest", "no layout document"),
    ],
)
def test_a_layout_that_does_not_belong_to_the_arena_is_refused(
    node: Node, layout: bytes, reason: str, says: str
) -> None:
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        os.close(engine.allocate(len(DATA)))
        engine.commit(layout)
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == reason
        assert says in refused.problem.message


@pytest.mark.parametrize("kind", ["pipe", "file", "empty", "vast"])
def test_a_layout_that_is_no_document_is_refused(node: Node, kind: str, tmp_path: Path) -> None:
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    if kind == "pipe":
        fd, other = os.pipe()
        os.close(other)
    elif kind == "file":
        (tmp_path / "layout").write_bytes(layout_for(len(DATA)))
        fd = os.open(tmp_path / "layout", os.O_RDONLY)
    else:
        fd = memfd.create("layout", 0 if kind == "empty" else MAX_LAYOUT + 1)
    with node.engine(uid) as engine:
        os.close(engine.allocate(len(DATA)))
        engine.send(attach.Commit(), fd)
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "BadRequest"
        assert engine.closed()
    os.close(fd)


def test_an_engine_of_another_identity_is_refused_by_field_and_values(node: Node) -> None:
    first = seeded(node)
    uid = node.publish()
    node.want(wanted("hold", pods=[first, uid], refused=[uid]))
    with node.engine(uid, identity={**IDENTITY, "dtype": "float8"}) as engine:
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "IdentityMismatch"
        assert "dtype: engine 'float8', arena " in refused.problem.message
        assert "'bfloat16'" in refused.problem.message
        pod = node.pod(uid)
        assert pod is not None
        assert pod.ranks[0].problem == refused.problem
        engine.send(attach.Clear(place=Place()))
        eventually(lambda: (pod := node.pod(uid)) and not pod.problems, "problem cleared")


def test_a_seed_that_goes_before_its_commit_leaves_nothing(node: Node) -> None:
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        fd = engine.allocate(64 * MIB)
        seen = node.arena()
        assert seen is not None
        assert (seen.state, seen.bytes) == ("seeding", 64 * MIB)
        os.close(fd)
    eventually(lambda: node.held() == 0 and not node.memory_files(), "half a seed freed")
    assert node.arena() is None
    with node.engine(uid) as engine:  # and the next try gets its chance
        engine.seed(DATA)
    node.until_sealed()


def test_a_seed_that_does_not_commit_in_time_is_cut_off_and_another_try_succeeds(cluster: Cluster) -> None:
    node = cluster.node("patient", env={"FLASHBOOT_COMMIT_SECONDS": "1"})
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        fd = engine.allocate(MIB)
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "Timeout"
        assert f"pod {uid}: no commit of {ARENA} within 1 s" in refused.problem.message
        os.close(fd)
    eventually(lambda: node.held() == 0 and not node.memory_files(), "half a seed freed")
    with node.engine(uid) as engine:
        engine.seed(DATA)
    node.until_sealed()


def test_more_than_the_budget_is_refused_with_numbers(cluster: Cluster) -> None:
    node = cluster.node("small", budget=8 * MIB)
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        engine.until(attach.Seed)
        engine.send(attach.Allocate(bytes=9 * MIB))
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "InsufficientMemory"
        assert str(9 * MIB) in refused.problem.message
        assert str(8 * MIB) in refused.problem.message
        engine.send(attach.Allocate(bytes=len(DATA)))  # a smaller one is still welcome
        message, fds = engine.until(attach.Writable)
        assert message.bytes == len(DATA)
        for fd in fds:
            os.close(fd)
    assert node.observed().memory.budget_bytes == 8 * MIB


@pytest.mark.parametrize(
    "packet",
    [
        b"{",
        b'{"type":"hello"}',
        b'{"type":"nothing"}',
        b"\xff\xfe",
        attach.Allocate(bytes=1).to_json(),
        attach.Commit().to_json(),
        attach.Attached().to_json(),
        b'{"type":"hello","identity":{},"more":1}',
        b'{"type":"hello","identity":{"a":"' + b"x" * attach.MAX_MESSAGE + b'"}}',
    ],
)
def test_a_malformed_or_misplaced_packet_is_refused_and_changes_nothing(node: Node, packet: bytes) -> None:
    uid = node.publish()
    with node.engine(uid, greet=False) as engine:
        before = node.observed().pods
        engine.send(packet)
        refused, _ = engine.receive()
        assert isinstance(refused, attach.Refused)
        assert refused.problem.reason == "BadRequest"
        assert engine.closed()
    eventually(lambda: node.observed().pods == before, "nothing changed")
    assert node.held() == 0


def test_descriptors_that_nobody_asked_for_are_refused_and_closed(node: Node) -> None:
    uid = node.publish()
    assert node.agent is not None
    folder = Path(f"/proc/{node.agent.pid}/fd")
    fd = memfd.sealed_copy("stray", b"x")
    with node.engine(uid, greet=False) as engine:
        engine.send(attach.Hello(identity={}), fd, fd, fd)
        refused, _ = engine.until(attach.Refused)
        assert refused.problem.reason == "BadRequest"
    os.close(fd)

    def strays() -> list[str]:
        return [name for each in folder.iterdir() if "stray" in (name := os.readlink(each))]

    eventually(lambda: not strays(), "stray descriptors closed")


def test_troubles_of_an_engine_are_shown_until_it_attaches(node: Node) -> None:
    uid = node.publish()
    trouble = Problem(reason="CheckpointMissing", message="/models/a.safetensors is missing")
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        engine.until(attach.Seed)
        engine.send(attach.Trouble(problem=trouble, place=Place()))
        eventually(lambda: (pod := node.pod(uid)) and pod.problems == [trouble], "trouble shown")
    eventually(lambda: (pod := node.pod(uid)) and pod.phase == "published", "engine gone")
    assert (pod := node.pod(uid)) is not None
    assert pod.problems == [trouble]  # it crashed; the reason stays
    with node.engine(uid) as engine:
        engine.seed(DATA)
        eventually(lambda: (pod := node.pod(uid)) and pod.phase == "attached" and not pod.problems, "put right")


def test_when_an_engine_that_has_not_asked_yet_spoke_last_is_known(node: Node) -> None:
    """So that one whose checkpoint was put right just now does not count as one that hangs."""
    uid = node.publish()
    trouble = Problem(reason="CheckpointMissing", message="/models/a is missing")
    with node.engine(uid, greet=False) as engine:
        engine.send(attach.Trouble(problem=trouble))
        eventually(lambda: (pod := node.pod(uid)) and pod.problem == trouble, "trouble shown")
        said = node.pod(uid)
        engine.send(attach.Clear())
        eventually(lambda: (pod := node.pod(uid)) and pod.problem is None, "put right")
    after = node.pod(uid)
    assert said is not None
    assert after is not None
    assert said.heard_at is not None
    assert after.heard_at is not None
    assert after.heard_at > said.heard_at
    assert after.hello_at is None


def test_a_pod_that_no_desired_state_names_waits_with_a_note(node: Node) -> None:
    uid = node.publish()
    with node.engine(uid) as engine:
        coming, _ = engine.until(attach.Coming)
        assert coming.note == "the operator has not named an arena for this pod yet"
        assert not coming.allocated
        node.want(wanted("seed", seed_pod=uid, pods=[uid]))
        engine.until(attach.Seed)


def test_a_pod_that_is_not_listed_belongs_to_the_only_arena_of_its_model_replica(node: Node) -> None:
    seeded(node)
    uid = node.publish()
    with node.engine(uid) as engine:
        _, data = engine.attach()
        assert data == DATA


def test_an_arena_goes_with_its_last_pod_unless_the_operator_holds_it(node: Node) -> None:
    uid = seeded(node)
    node.want()  # the operator wants nothing; the pod still has it
    node.want(wanted("hold"))
    node.unpublish(uid)
    eventually(lambda: not node.observed().pods, "pod gone")
    node.until_sealed()
    node.want()
    eventually(lambda: node.held() == 0 and not node.memory_files(), "arena gone")


def test_a_killed_agent_comes_back_with_its_sealed_arena_and_its_attached_pods(node: Node) -> None:
    uid = seeded(node)
    before = node.until_sealed()
    with node.engine(uid) as engine:
        engine.attach()
        node.kill_agent()
    node.start_agent()
    after = node.until_sealed()
    assert after == before
    pod = node.pod(uid)
    assert pod is not None
    assert [(rank.arena, rank.way) for rank in pod.ranks] == [(ARENA, "seed")]
    assert pod.attached_at is not None
    with node.engine(uid, attached=True) as engine:
        engine.until(attach.Ready)
        eventually(lambda: (pod := node.pod(uid)) and pod.phase == "attached", "attached again")
        again = [rank.model_copy(update={"phase": "attached"}) for rank in pod.ranks]
        assert node.pod(uid) == pod.model_copy(update={"ranks": again})
    eventually(lambda: "arena verified" in node.log.read_text(), "digests computed anew")


def test_an_agent_killed_during_a_seed_leaves_nothing(node: Node) -> None:
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        os.close(engine.allocate(16 * MIB))
        node.kill_agent()
    node.start_agent()
    eventually(lambda: node.held() == 0 and not node.memory_files(), "half a seed freed")
    with node.engine(uid) as engine:
        engine.seed(DATA)
    node.until_sealed()


def test_a_restarted_holder_gets_the_arenas_back_from_the_agent(node: Node) -> None:
    uid = seeded(node)
    node.kill_holder()
    eventually(lambda: node.get("/readyz")[0] == 503, "not ready")
    assert b"holder" in node.get("/readyz")[1]
    with node.engine(uid) as engine:  # what is resident is served all the same
        _, data = engine.attach()
        assert data == DATA
    node.start_holder()
    eventually(lambda: node.held() == 1 and node.get("/readyz")[0] == 200, "deposited again")
    node.kill_agent()  # the proof: now the holder is all that has it
    node.start_agent()
    with node.engine(uid) as engine:
        _, data = engine.attach()
        assert data == DATA


def test_sockets_come_back_after_the_folder_was_replaced(node: Node) -> None:
    uid = node.publish()
    with node.engine(uid):
        pass
    folder = node.run / "pods" / uid
    folder.rename(folder.with_suffix(".old"))
    folder.mkdir()
    with node.engine(uid, greet=False) as engine:
        assert isinstance(engine, Engine)
