"""A resident arena is brought to another version in place, by an order over the control protocol: real agents, holders,
memfds and deltas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.component.agents import Cluster, Node
from tests.component.arena_versions import held, order, publish, read, root, seed, versions
from tests.component.clones import clone

IMAGES = versions(3)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    publish(folder, IMAGES)
    return folder


@pytest.fixture
def a(cluster: Cluster) -> Node:
    return cluster.node("a")


def until_version(node: Node, version: int) -> None:
    arena = node.until_arena(lambda arena: arena.state == "sealed" and arena.version == version, f"version {version}")
    assert (arena.digest, arena.update, arena.updatable) == (root(IMAGES[version]), None, True)


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
