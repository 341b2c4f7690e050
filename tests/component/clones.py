"""Arenas that are seeded and cloned between the nodes of a mini cluster, for the tests of clones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.desired import Lane
from flashboot_agent.wire.observed_arena import ObservedArena
from tests.component.agents import MIB, Node, eventually, wanted
from tests.component.proxy import ChunkProxy

DATA = os.urandom(24 * MIB + 512)
DIGEST = root_digest(chunk_digests(DATA))


def seed(node: Node, data: bytes = DATA) -> str:
    """`node` becomes a source that the operator holds."""
    uid = node.publish()
    node.want(wanted("seed", seed_pod=uid, pods=[uid]))
    with node.engine(uid) as engine:
        engine.seed(data)
    node.want(wanted("hold", pods=[uid]))
    return uid


def clone(node: Node, *parents: Peer, lanes: int = 1, **facts: Any) -> str:
    uid = node.publish()
    node.want(wanted("clone", lanes=[Lane(parents=list(parents))] * lanes, pods=[uid], **facts))
    return uid


def accused(arena: ObservedArena) -> list[tuple[str, str]]:
    return [(each.node, each.problem.reason) for each in arena.accusations]


def attached_bytes(node: Node, uid: str) -> bytes:
    with node.engine(uid) as engine:
        ready, data = engine.attach()
        assert ready.digest == DIGEST
        eventually(
            lambda: (pod := node.pod(uid)) and pod.phase == "attached" and pod.ranks[0].way == "clone", "attached"
        )
    return data


def until_empty(node: Node) -> None:
    eventually(lambda: node.held() == 0 and not node.memory_files(), f"nothing left on {node.name}")


@contextmanager
def proxy_to(node: Node) -> Iterator[tuple[ChunkProxy, Peer]]:
    proxy = ChunkProxy(node.peer.address)
    try:
        yield proxy, Peer(node=node.name, address=proxy.address)
    finally:
        proxy.close()
