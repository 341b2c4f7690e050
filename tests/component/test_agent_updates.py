"""A resident arena is brought to another version in place, by an order over the control protocol: real agents, holders,
memfds and deltas."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flashboot_agent.memory import memfd
from flashboot_agent.wire import attach
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.update import WantedUpdate
from tests.component.agents import MIB, Cluster, Node, eventually
from tests.component.arena_versions import NBYTES, Versions, held, order, publish, read, root, seed
from tests.component.clones import clone, proxy_to
from tests.component.sync_server import says, serving, stops_after

IMAGES = Versions(3)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    publish(folder, IMAGES)
    return folder


@pytest.fixture
def a(cluster: Cluster) -> Node:
    return cluster.node("a", env={"FLASHBOOT_DRAIN_SECONDS": "1"})


def until_version(node: Node, version: int) -> None:
    arena = node.until_arena(lambda arena: arena.state == "sealed" and arena.version == version, f"version {version}")
    assert (arena.digest, arena.update, arena.updatable) == (root(IMAGES[version]), None, True)


def until_refused(node: Node, order: WantedUpdate, reason: str, *, retried: bool) -> str:
    """The message; the arena is what it was, and serves."""
    node.want(held(update=order))

    def refused(arena: ObservedArena) -> bool:
        update = arena.update
        return bool(update and update.problem and update.problem.reason == reason and update.phase == "failed")

    arena = node.until_arena(refused, f"refused for {reason}")
    assert arena.update is not None
    assert arena.update.problem is not None
    assert arena.update.retried == retried
    assert (arena.version, arena.digest) == (0, root(IMAGES[0]))
    node.want(held())
    node.until_arena(lambda arena: arena.state == "sealed" and arena.update is None, "the order is gone")
    return arena.update.problem.message


def test_an_order_brings_the_arena_through_two_versions_and_clones_and_engines_have_them(
    cluster: Cluster, a: Node, origin: Path
) -> None:
    seed(a, IMAGES[0])
    a.want(held(update=order(origin, 2)))
    until_version(a, 2)
    assert read(a) == IMAGES[2]
    b = cluster.node("b")
    uid = clone(b, a.peer, digest=root(IMAGES[2]))
    sealed = b.until_sealed()
    assert (sealed.version, sealed.digest, sealed.updatable) == (2, root(IMAGES[2]), False)
    with b.engine(uid) as engine:
        assert engine.attach()[1] == IMAGES[2]


def test_what_can_not_be_applied_is_told_and_leaves_the_arena_as_it_was(
    cluster: Cluster, a: Node, origin: Path, tmp_path: Path
) -> None:
    seed(a, IMAGES[0])
    said = until_refused(a, order(origin, 1, Ed25519PrivateKey.generate()), "DeltaUntrusted", retried=False)
    assert "not trusted here" in said
    publish(tmp_path / "other", [IMAGES[1], IMAGES[2]])
    said = until_refused(a, order(tmp_path / "other", 1), "DeltaBaseMismatch", retried=False)
    assert "version 0 is" in said
    publish(tmp_path / "larger", Versions(2, NBYTES + 4096))
    until_refused(a, order(tmp_path / "larger", 1), "DeltaBaseMismatch", retried=False)
    assert "not published yet" in until_refused(a, order(origin, 9), "NotReady", retried=True)
    assert "nothing is published" in until_refused(a, order(tmp_path / "empty", 1), "NotReady", retried=True)
    with serving(origin) as server:
        server.bad = [says(403)] * 20
        assert "403" in until_refused(a, order(server.url, 1), "DeltaUnreachable", retried=True)
        server.bad = [stops_after(1000)] * 20
        until_refused(a, order(server.url, 1, seconds=1), "Timeout", retried=True)
        assert read(a) == IMAGES[0]
        server.bad = []
        a.want(held(update=order(server.url, 2)))
        until_version(a, 2)
    assert read(a) == IMAGES[2]
    assert not list((a.run / "updates").glob("*/spool/*"))
    metrics = a.get("/metrics")[1].decode()
    assert "flashboot_update_barred_seconds_count 2.0" in metrics
    assert 'flashboot_update_failures_total{reason="DeltaUntrusted"} 1.0' in metrics


def test_a_damaged_delta_changes_nothing(a: Node, origin: Path, tmp_path: Path) -> None:
    seed(a, IMAGES[0])
    publish(tmp_path / "p", IMAGES[:2])
    delta = tmp_path / "p" / "0-1.delta"
    good = delta.read_bytes()
    for bad in (good[: len(good) // 2], good[:-300] + bytes([good[-300] ^ 1]) + good[-299:]):
        delta.write_bytes(bad)
        assert "0-1.delta" in until_refused(a, order(tmp_path / "p", 1), "DeltaDamaged", retried=True)
    assert read(a) == IMAGES[0]


def test_an_arena_that_was_not_made_for_it_is_not_updated(a: Node, origin: Path) -> None:
    seed(a, IMAGES[0], updatable=False)
    arena = a.arena()
    assert arena is not None
    assert not arena.updatable
    said = until_refused(a, order(origin, 1), "ArenaImmutable", retried=False)
    assert "`updatable: true` can be updated in place; drop this one" in said
    assert read(a) == IMAGES[0]


def test_an_arena_that_an_engine_has_waits_until_its_pod_is_gone(a: Node, origin: Path) -> None:
    seed(a, IMAGES[0])
    uid = a.publish()
    a.want(held(pods=[uid]))
    with a.engine(uid) as engine:
        ready, fds = engine.until(attach.Ready)  # it has not said `attached` yet
        a.want(held(pods=[uid], update=order(origin, 1)))
        arena = a.until_arena(lambda arena: arena.update and arena.update.problem, "refused")
        assert arena.update is not None
        assert arena.update.problem is not None
        assert (arena.update.problem.reason, arena.update.retried) == ("ArenaInUse", True)
        for named in (f"tiny-{uid[:5]}", "node a", arena.arena):
            assert named in arena.update.problem.message
        a.kill_agent()
        a.start_agent()  # which knows of the engine before that has come back
        a.until_arena(lambda arena: arena.update and arena.update.problem, "refused by the next agent, too")
        assert os.pread(fds[0], ready.bytes, 0) == IMAGES[0]
        memfd.close_all(fds)
    a.unpublish(uid)
    until_version(a, 1)
    assert read(a) == IMAGES[1]


def test_children_on_their_way_are_waited_for_and_new_ones_told_to_go_elsewhere(
    cluster: Cluster, a: Node, origin: Path
) -> None:
    seed(a, IMAGES[0])
    b, c = cluster.node("b", env={"FLASHBOOT_OVERDUE_FLOOR_MS": "60000"}), cluster.node("c")
    with proxy_to(a) as (proxy, peer):
        proxy.inject("stall", NBYTES // 2)
        clone(b, peer)
        proxy.wait_for("stall")
        a.want(held(update=order(origin, 1)))
        a.until_arena(lambda arena: arena.state == "updating", "barred")
        clone(c, a.peer)
        eventually(lambda: "ArenaUpdating" in c.log.read_text(), "a new child is told why")
        arena = a.until_arena(lambda arena: arena.update and arena.update.problem, "given up")
        assert arena.update is not None
        assert arena.update.problem is not None
        assert arena.update.problem.reason == "ArenaInUse"
        assert "still read by b" in arena.update.problem.message
        assert not [arena for arena in [c.arena()] if arena and arena.accusations]
        proxy.resume()
        assert b.until_sealed().digest == root(IMAGES[0])
    until_version(a, 1)
    sealed = c.until_sealed()
    assert sealed.digest == root(IMAGES[sealed.version])


def test_half_a_clone_of_the_old_version_begins_anew_when_its_parent_has_a_newer_one(
    cluster: Cluster, a: Node, origin: Path
) -> None:
    seed(a, IMAGES[0])
    b = cluster.node("b")
    with proxy_to(a) as (proxy, peer):
        proxy.inject("stall", NBYTES // 2)
        clone(b, peer)
        proxy.wait_for("stall")
        b.until_arena(lambda arena: arena.watermark, "a part is here")
        b.kill_agent()
    a.want(held(update=order(origin, 1)))
    until_version(a, 1)
    b.start_agent()
    clone(b, a.peer)
    assert b.until_sealed().digest == root(IMAGES[1])


def test_an_image_keeps_the_version_that_it_was_written_of(cluster: Cluster, origin: Path) -> None:
    node = cluster.node("a", start=False)
    node.env = {"FLASHBOOT_IMAGES": str(node.run / "images"), "FLASHBOOT_IMAGES_BUDGET_BYTES": str(1 << 30)}
    node.start_holder()
    node.start_agent()
    seed(node, IMAGES[0])
    eventually(lambda: node.observed().images, "an image")
    node.want(held(update=order(origin, 1)))
    until_version(node, 1)
    eventually(lambda: node.observed().images[0].digest == root(IMAGES[1]), "an image of the new version")
    node.want()
    eventually(lambda: node.arena() is None, "dropped")
    eventually(lambda: not list((node.run / "updates").iterdir()), "nothing of it is left")
    node.want(held("load"))
    until_version(node, 1)
    node.want(held("hold", update=order(origin, 2)))
    until_version(node, 2)
    assert read(node) == IMAGES[2]


def test_an_updatable_arena_that_is_damaged_is_found_out_and_dropped(cluster: Cluster) -> None:
    node = cluster.node("a", env={"FLASHBOOT_VERIFY_SECONDS": "1"})
    seed(node, IMAGES[0])
    eventually(lambda: "arena verified" in node.log.read_text(), "compared, and right")
    assert node.holder is not None
    fds = Path(f"/proc/{node.holder.pid}/fd")
    data = next(fd for fd in fds.iterdir() if os.readlink(fd).startswith("/memfd:flashboot-arena"))
    with open(data, "r+b") as memory:  # what only a privileged process of this node can do
        memory.seek(5 * MIB)
        memory.write(bytes([IMAGES[0][5 * MIB] ^ 1]))
    eventually(lambda: node.arena() is None, "dropped")
    assert "arena differs from its digests" in node.log.read_text()


def test_an_order_that_is_withdrawn_ends_what_it_began(a: Node, origin: Path) -> None:
    seed(a, IMAGES[0])
    with serving(origin) as server:
        server.bad = [stops_after(1000)] * 20
        a.want(held(update=order(server.url, 1)))
        a.until_arena(lambda arena: arena.update and arena.update.phase == "fetching", "fetching")
        eventually(lambda: list((a.run / "updates").glob("*/spool/*")), "a part of it")
        a.want(held())
        eventually(lambda: not list((a.run / "updates").glob("*/spool/*")), "nothing is left")
        a.want(held(update=order(origin, 2)))
        until_version(a, 2)
    assert read(a) == IMAGES[2]
