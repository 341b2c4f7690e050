"""The store over real memfds, with a holder that takes its time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import NotReady
from flashboot_agent.memory import memfd
from flashboot_agent.memory.host import HostMemoryBackend, Kept
from flashboot_agent.memory.memfd import Pages
from flashboot_agent.node import store as module
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.board import Board
from flashboot_agent.node.store import ArenaStore, verify_all
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.wire.control import WantedArena

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


def sealed(store: ArenaStore) -> Arena:
    arena = store.allocate(WANTED, NBYTES, "seed")
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
