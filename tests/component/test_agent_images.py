"""Arena images with real agents and holders: written after a seal, loaded by a node that lost everything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.identity import arena_id
from flashboot_agent.load.image import open_image
from flashboot_agent.load.image_write import TEMPORARY
from flashboot_agent.wire.desired import Lane, Role
from flashboot_agent.wire.place import Place
from tests.component.agents import ARENA, EXPECTED, MIB, REPLICA_UID, Cluster, Node, eventually, wanted

DATA = os.urandom(24 * MIB + 512)
DIGEST = root_digest(chunk_digests(DATA))

pytestmark = pytest.mark.slow


class Rig:
    """A node whose agent keeps images."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.folder = node.run / "images"

    def start(self, *, budget: int = 1 << 30, rate: int = 0) -> None:
        self.node.start_agent(
            FLASHBOOT_IMAGES=str(self.folder),
            FLASHBOOT_IMAGES_BUDGET_BYTES=str(budget),
            FLASHBOOT_IMAGES_BYTES_PER_SECOND=str(rate),
        )

    def image(self, arena: str = ARENA) -> Path:
        return self.folder / f"{arena}.image"

    def until_image(self, arena: str = ARENA) -> None:
        eventually(self.image(arena).exists, f"image of {arena}")

    def seed(self, data: bytes = DATA, arena: str = ARENA, place: Place | None = None) -> str:
        uid = self.node.publish()
        self.node.want(wanted("seed", arena=arena, seed_pod=uid, pods=[uid], place=place or Place()))
        with self.node.engine(uid, place=place or Place()) as engine:
            engine.seed(data)
        return uid

    def lose_everything(self) -> None:
        """As a reboot: no process, no memory, no pod; only the disk stays."""
        self.node.kill_agent()
        self.node.kill_holder()
        for meta in (self.node.run / "meta").glob("*.json"):
            self.node.unpublish(meta.stem)
        for file in (self.node.run / "agent").iterdir():
            file.unlink()
        self.node.start_holder()

    def pod_that(self, role: Role, **facts: Any) -> str:
        uid = self.node.publish()
        wish = (
            wanted("seed", seed_pod=uid, pods=[uid], **facts)
            if role == "seed"
            else wanted("clone", pods=[uid], **facts)
        )
        self.node.want(wish)
        return uid


@pytest.fixture
def rig() -> Iterator[Rig]:
    cluster = Cluster()
    try:
        node = cluster.node("a", start=False)
        node.start_holder()
        yield Rig(node)
    finally:
        print(cluster.logs())
        cluster.close()


@pytest.mark.parametrize("role", ["seed", "clone"])
def test_a_node_that_lost_everything_loads_its_image_instead_of_a_checkpoint(rig: Rig, role: Role) -> None:
    rig.start()
    rig.seed()
    rig.until_image()
    rig.lose_everything()
    rig.start()
    uid = rig.pod_that(role, digest=DIGEST)
    sealed = rig.node.until_sealed()
    assert (sealed.way, sealed.digest, sealed.watermark, sealed.bytes_in) == ("load", DIGEST, len(DATA), 0)
    assert sealed.started_at is not None
    with rig.node.engine(uid) as engine:
        _, data = engine.attach()
        assert data == DATA
        eventually(
            lambda: (pod := rig.node.pod(uid)) and pod.phase == "attached" and pod.ranks[0].way == "load", "attached"
        )
    metrics = rig.node.get("/metrics")[1].decode()
    assert "flashboot_load_seconds_count 1.0" in metrics


def test_a_node_without_a_pod_loads_its_image_when_it_is_asked_to(rig: Rig) -> None:
    rig.start()
    rig.seed()
    rig.until_image()
    rig.lose_everything()
    rig.start()
    [image] = rig.node.observed().images
    assert (image.arena, image.digest, image.bytes) == (ARENA, DIGEST, len(DATA))
    rig.node.want(wanted("hold"))
    assert rig.node.arena() is None
    rig.node.want(wanted("load"))
    sealed = rig.node.until_sealed()
    assert (sealed.way, sealed.digest) == ("load", DIGEST)
    rig.node.want(wanted("hold"))
    assert rig.node.until_sealed().created_at == sealed.created_at


def test_an_engine_that_asks_first_is_told_that_it_is_coming(rig: Rig) -> None:
    rig.start()
    rig.seed()
    rig.until_image()
    rig.lose_everything()
    rig.start()
    uid = rig.node.publish()
    with rig.node.engine(uid) as engine:
        rig.node.want(wanted("seed", seed_pod=uid, pods=[uid]))
        assert engine.attach()[1] == DATA  # `until` fails on anything but coming


@pytest.mark.parametrize("at", [-1, 65536 + 3 * MIB])
def test_a_flipped_byte_never_becomes_sealed(rig: Rig, at: int) -> None:
    rig.start()
    rig.seed()
    rig.until_image()
    rig.lose_everything()
    content = bytearray(rig.image().read_bytes())
    content[at] ^= 0x40
    rig.image().write_bytes(content)
    rig.start()
    uid = rig.pod_that("seed")
    eventually(lambda: not rig.image().exists(), "the image is removed")
    with rig.node.engine(uid) as engine:
        fd = engine.allocate(len(DATA))  # the normal way goes on
        os.close(fd)
        seeding = rig.node.until_arena(lambda arena: arena.state == "seeding", "seeding")
        assert seeding.problem is not None
        assert seeding.problem.reason == "ImageDamaged"
        assert "differs from its digest" in seeding.problem.message
    assert "flashboot_images_damaged_total 1.0" in rig.node.get("/metrics")[1].decode()


@pytest.mark.parametrize("other", [{"digest": "xxh3:0123456789abcdef"}, {"layout_digest": "sha256:" + "0" * 64}])
def test_an_image_of_other_bytes_or_another_layout_than_wanted_is_passed_over_and_replaced(
    rig: Rig, other: dict[str, str]
) -> None:
    rig.start()
    rig.seed()
    rig.until_image()
    before = image_digest(rig)
    rig.lose_everything()
    rig.start()
    uid = rig.pod_that("seed", **other)
    with rig.node.engine(uid) as engine:
        engine.seed(os.urandom(len(DATA)))  # `until` fails on anything but coming and seed
        assert "image passed over" in rig.node.log.read_text()
        eventually(lambda: image_digest(rig) != before, "the image of what was seeded instead")


def image_digest(rig: Rig) -> str:
    with open_image(rig.image()) as image:
        return image.manifest.digest


def test_a_parent_is_preferred_to_the_disk(rig: Rig) -> None:
    rig.start()
    rig.seed()
    rig.until_image()
    rig.lose_everything()
    rig.start()
    uid = rig.node.publish()
    rig.node.want(wanted("clone", pods=[uid], lanes=[Lane(parents=[rig.node.peer])]))  # one that refuses
    rig.node.until_arena(lambda arena: arena.way == "clone" and arena.accusations, "a clone that asks its parent")


def test_a_load_goes_on_where_it_was_killed(rig: Rig) -> None:
    data = os.urandom(160 * MIB)
    rig.start()
    rig.seed(data)
    rig.until_image()
    rig.lose_everything()
    rig.start()
    rig.pod_that("seed")
    rig.node.until_arena(lambda arena: arena.way == "load", "begun")
    rig.node.kill_agent()
    rig.start()
    sealed = rig.node.until_sealed()
    assert (sealed.way, sealed.digest) == ("load", root_digest(chunk_digests(data)))


def test_a_writer_that_is_killed_leaves_nothing_that_is_believed_and_writes_anew(rig: Rig) -> None:
    rig.start(rate=4 * MIB)  # some seconds
    rig.seed()
    temporary = rig.image().with_name(rig.image().name + TEMPORARY)
    eventually(temporary.exists, "the writer in the middle")
    rig.node.kill_agent()
    assert not rig.image().exists()
    rig.start()
    rig.until_image()
    assert not temporary.exists()
    with open_image(rig.image()) as image:
        assert image.manifest.digest == DIGEST


def test_a_dropped_arena_is_not_held_by_the_writer_of_its_image(rig: Rig) -> None:
    rig.start(rate=MIB)  # half a minute
    uid = rig.seed()
    temporary = rig.image().with_name(rig.image().name + TEMPORARY)
    eventually(temporary.exists, "the writer in the middle")
    rig.node.unpublish(uid)
    rig.node.want()
    eventually(lambda: rig.node.held() == 0, "the holder let go")
    eventually(lambda: not rig.node.memory_files(), "the agent let go")
    assert os.listdir(rig.folder) == []


def test_the_least_recently_used_image_makes_room(rig: Rig) -> None:
    rig.start(budget=2 * (len(DATA) + 131072))
    arenas = [(arena_id(REPLICA_UID, EXPECTED, Place(tp=tp)), Place(tp=tp)) for tp in range(3)]
    for arena, place in arenas:
        uid = rig.seed(arena=arena, place=place)
        rig.until_image(arena)
        rig.node.unpublish(uid)
        rig.node.want()
        eventually(lambda: rig.node.held() == 0, "dropped")
    kept = {path.name for path in rig.folder.iterdir()}
    assert kept == {f"{arena}.image" for arena, _ in arenas[1:]}


def test_without_a_budget_there_are_no_images(rig: Rig) -> None:
    rig.start(budget=0)
    rig.seed()
    assert not rig.folder.exists()
