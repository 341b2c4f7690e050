"""The store over real memfds, with a holder that takes its time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import NotReady
from flashboot_agent.holder.client import HolderStats
from flashboot_agent.memory import memfd
from flashboot_agent.memory.host import HostMemoryBackend, HostRegion, Kept
from flashboot_agent.memory.memfd import Pages
from flashboot_agent.node import store as module
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.board import Board
from flashboot_agent.node.holder_watch import HolderWatch
from flashboot_agent.node.state import NodeState
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.node.verify import verify_all
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.desired import WantedArena

IDENTITY = "sha256:" + "1" * 64
NBYTES = (1 << 20) + 4097
WANTED = WantedArena(
    arena="arena-" + "1" * 32,
    namespace="serving",
    model_replica="m",
    model_replica_uid="11111111-2222",
    expected_identity="sha256:" + "0" * 64,
    role="clone",
)
SECONDS = 20.0
"""Until a test is given up."""


class SlowHolder:
    """Answers everything but `create` when it is let."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.let = threading.Event()

    def create(self, arena: str, nbytes: int, pages: Pages) -> Kept:
        return Kept(memfd.create(arena, nbytes), memfd.create("record", 8 << 20), nbytes)

    def get(self, arena: str) -> Kept | None:
        return None

    def drop(self, arena: str) -> None:
        self._answer()

    def put(self, arena: str, nbytes: int, data: int, record: int) -> None:
        self._answer()

    def inventory(self) -> dict[str, int]:
        return {}

    def _answer(self) -> None:
        self.asked.set()
        assert self.let.wait(SECONDS)


@pytest.fixture
def holder() -> Iterator[SlowHolder]:
    made = SlowHolder()
    yield made
    made.let.set()


@pytest.fixture
def store(holder: SlowHolder) -> Iterator[ArenaStore]:
    made = ArenaStore(HostMemoryBackend(holder), Board(), revoke_seconds=0.1)
    yield made
    holder.let.set()
    made.drop(WANTED.arena, "the test is over")


def sealed(store: ArenaStore, wanted: WantedArena = WANTED) -> Arena:
    arena = store.allocate(wanted, NBYTES, "seed")
    digests = chunk_digests(bytes(NBYTES))
    arena.region.seal()
    arena.publish_seed(ArenaMeta(arena.name, IDENTITY, NBYTES, b"layout", digests, root_digest(digests)))
    return arena


def test_leases_can_be_looked_at_while_the_holder_takes_its_time(store: ArenaStore, holder: SlowHolder) -> None:
    """The event loop does so in every round."""
    arena = sealed(store)
    depositing = threading.Thread(target=store.deposit_all)
    depositing.start()
    assert holder.asked.wait(SECONDS)
    looking = threading.Thread(target=lambda: arena.leases.read)
    looking.start()
    looking.join(SECONDS / 4)
    stuck = looking.is_alive()
    holder.let.set()
    depositing.join()
    looking.join()
    assert not stuck


def test_what_is_evicted_is_gone_at_once_and_its_last_use_is_known(store: ArenaStore, holder: SlowHolder) -> None:
    arena = sealed(store)
    assert arena.used_at == arena.record.sealed_at
    arena.note_use(used=True)
    arena.note_use(used=False)
    assert arena.record.used_at is not None
    assert arena.used_at == arena.record.used_at
    arena.lease("child")
    assert store.forget_unread(arena.name) is None
    assert store.get(arena.name) is arena
    arena.release("child")
    assert store.forget_unread(arena.name) is arena
    assert store.get(arena.name) is None
    assert store.forget_unread(arena.name) is None
    holder.let.set()
    store.free(arena, "its memory is needed")


def test_a_name_that_is_still_being_freed_is_this_nodes_own_trouble(
    store: ArenaStore, holder: SlowHolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane accuses its parent of anything else."""
    monkeypatch.setattr(module, "DROP_DEADLINE", 0.05)
    store.allocate(WANTED, NBYTES, "clone")
    freeing = threading.Thread(target=store.drop, args=(WANTED.arena, "not wanted"))
    freeing.start()
    assert holder.asked.wait(SECONDS)
    with pytest.raises(NotReady, match="still being made or freed"):
        store.allocate(WANTED, NBYTES, "clone")
    holder.let.set()
    freeing.join()
    assert store.allocate(WANTED, NBYTES, "clone").state == "allocated"


def test_verifying_ends_with_the_agent(store: ArenaStore) -> None:
    arena, stop = sealed(store), threading.Event()
    assert verify_all(arena, 1, stop)
    stop.set()
    with pytest.raises(NotReady, match="this agent ends"):
        verify_all(arena, 1, stop)


class Restarting:
    """Keeps two arenas; dies once it has given one of them away, and comes back with nothing or with both."""

    instance = "first"

    def __init__(self, kept: dict[str, Kept], *, forgets: bool) -> None:
        self.kept, self.forgets = kept, forgets
        self.given: list[Kept] = []

    def create(self, arena: str, nbytes: int, pages: Pages) -> Kept:
        raise AssertionError(arena)

    def get(self, arena: str) -> Kept | None:
        if self.instance == "first" and self.given:
            self.instance = "second"
            self.kept = {} if self.forgets else self.kept
            raise NotReady("it died")
        kept = self.kept[arena]
        self.given.append(Kept(os.dup(kept.data), os.dup(kept.record), kept.nbytes))
        return self.given[-1]

    def drop(self, arena: str) -> None:
        self.kept.pop(arena, None)

    def put(self, arena: str, nbytes: int, data: int, record: int) -> None:
        self.kept.setdefault(arena, Kept(data, record, nbytes))

    def inventory(self) -> dict[str, int]:
        return {arena: kept.nbytes for arena, kept in self.kept.items()}

    def stats(self) -> HolderStats:
        return HolderStats(self.instance, 1 << 30, 0, len(self.kept))


@pytest.mark.parametrize("forgets", [True, False])
async def test_a_holder_that_dies_during_the_recovery_costs_neither_arenas_nor_descriptors(
    forgets: bool, holder: SlowHolder
) -> None:
    holder.let.set()
    earlier = ArenaStore(HostMemoryBackend(holder), Board())
    kept: dict[str, Kept] = {}
    for digit in "12":
        arena = sealed(earlier, WANTED.model_copy(update={"arena": "arena-" + digit * 32}))
        region = arena.region
        assert isinstance(region, HostRegion)
        kept[arena.name] = Kept(region.fd, region.record, region.nbytes)
    restarting = Restarting(dict(kept), forgets=forgets)
    store = ArenaStore(HostMemoryBackend(restarting), Board())
    node = SimpleNamespace(holder=restarting, store=store, stats=None, board=Board())
    found: list[Arena] = []
    watch = HolderWatch(cast(NodeState, node), lambda: None, found.append)
    with pytest.raises(NotReady):
        await watch._look()
    await watch._look()
    names = sorted(kept)[: 1 if forgets else 2]
    assert sorted(arena.name for arena in found) == sorted(restarting.kept) == names
    assert len(restarting.given) == len(names), "each was taken once"
    for store_, all_ in ((store, names), (earlier, sorted(kept))):
        for name in all_:
            store_.drop(name, "the test is over")
