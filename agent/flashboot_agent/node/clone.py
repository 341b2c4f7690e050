"""FlashClone: fill an arena from its parents, lane by lane, and serve it to children at the same time.

    a parent's metadata → identity and digest compared → memory, once → every lane pulls (node/lane.py) → seal

A clone is one thread for each lane of its arena, at most 16; lane 0 begins, and the others once the memory is there.
The threads spend their time in `_native`, without the GIL. What was received is not received again: the next parent,
and the next process after a kill, go on where the last one stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from flashboot_agent._native import BYTES_IN
from flashboot_agent.core.errors import DigestMismatch, FlashBootError, IdentityMismatch
from flashboot_agent.core.lanes import lane_count
from flashboot_agent.logs import Log
from flashboot_agent.node import documents
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.lane import Lane
from flashboot_agent.node.orders import Cancelled, Orders
from flashboot_agent.node.settings import Settings
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.transport.base import ArenaMeta
from flashboot_agent.transport.choose import Connect, Connected
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.base import now
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_arena import Accusation
from flashboot_agent.wire.problem import Problem

log = Log(__name__)


@dataclass(frozen=True)
class CloneDone:
    """For metrics."""

    seconds: float
    nbytes: int
    parent: str


class Clone:
    """Runs from `start` until it ended by success or `cancel`; it never gives up by itself."""

    def __init__(
        self,
        wanted: WantedArena,
        store: ArenaStore,
        connect: Connect,
        settings: Settings,
        *,
        notify: Callable[[], None],
        moved: Callable[[], None],
        done: Callable[[CloneDone], None],
    ) -> None:
        """`notify` is called after each change that is observed, `moved` after those that come many times a second."""
        self.orders = Orders(wanted)
        self._store = store
        self._connect = connect
        self._settings = settings
        self._notify = notify
        self._moved = moved
        self._done = done
        self._taking = threading.Lock()
        """Whoever looks for the arena, or makes it."""
        self._accusing = threading.Lock()
        self._lanes = [Lane(0, self, settings)]
        self._threads: list[threading.Thread] = []
        self._stopped = False
        self._anew = False
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name=f"clone-{wanted.arena[-8:]}", daemon=True)
        self.ended_at: float | None = None
        """When its threads ended, by the monotonic clock."""
        self.accusations: list[Accusation] = []
        """The last of each parent, newest last."""
        self.created_at = now()

    @property
    def wanted(self) -> WantedArena:
        return self.orders.wanted

    @property
    def problem(self) -> Problem | None:
        """The present trouble of the first lane that has one."""
        return next((lane.problem for lane in self._lanes if lane.problem is not None), None)

    @property
    def note(self) -> str:
        """What its first lane is about, for people."""
        return self._lanes[0].note

    @property
    def threads(self) -> int:
        """That it takes at most, as far as is known."""
        return max(len(self._lanes), len(self.wanted.lanes))

    def start(self) -> None:
        self._thread.start()

    def update(self, wanted: WantedArena) -> None:
        """A new desired state. It ends a back-off, and leaves a parent that is no longer listed."""
        self.orders.update(wanted)

    def cancel(self) -> None:
        """End it soon; `join` waits for that."""
        self.orders.cancel()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # The clone's thread

    def _run(self) -> None:
        try:
            while not self._seal_complete():
                self._fill()
        except Cancelled:
            log.info("clone cancelled", arena=self.wanted.arena)
        except FlashBootError as error:  # it could not be sealed, or went meanwhile: the next round looks anew
            log.warning("clone ended", arena=self.wanted.arena, why=str(error))
        finally:
            self.ended_at = time.monotonic()
            self._notify()

    def _seal_complete(self) -> bool:
        """True when nothing is left to pull, and it is sealed."""
        arena = self._store.get(self.wanted.arena)
        if arena is None or arena.watermark < arena.nbytes:
            return False
        if arena.state == "filling":
            with arena.pinned():
                arena.seal_clone()
            parent, seconds = arena.feeds[0].parent, time.monotonic() - self._began
            log.info("clone sealed", arena=arena.name, parent=parent, bytes=arena.nbytes, seconds=round(seconds, 3))
            if parent is not None:  # else the process before us pulled all of it
                self._done(CloneDone(seconds, arena.nbytes, parent))
        return True

    def _fill(self) -> None:
        """All lanes to their ends, or until one found that the arena has to begin anew. Raises Cancelled."""
        self.orders.go_on()
        self._began = time.monotonic()
        self._lanes, self._threads = [Lane(0, self, self._settings)], []
        self._stopped = self._anew = False
        self._run_lane(self._lanes[0], self._store.get(self.wanted.arena))
        for thread in self._threads:
            thread.join()  # all end, since what stops one stops all
        if self._anew:
            self._drop()
        elif self._stopped:
            raise Cancelled

    def _run_lane(self, lane: Lane, arena: Arena | None = None) -> None:
        """`arena`: here already, so that its other lanes begin, too."""
        try:
            if arena is not None:
                with self._taking:
                    self._start_lanes(arena)
            lane.run()
        except Cancelled:
            self._stopped = True
        except BaseException as error:  # a fault of ours must not leave the other lanes waiting: all end, and the next
            self._stopped = True  # round of the agent begins another clone
            self.orders.halt()
            log.error("lane broke", exc_info=error, arena=self.wanted.arena, lane=lane.number)

    def _start_lanes(self, arena: Arena) -> None:
        """All but lane 0, which runs already, and those that do, too. Under `_taking`, or two could start the same."""
        for number in range(len(self._lanes), arena.record.lanes):
            lane = Lane(number, self, self._settings)
            thread = threading.Thread(target=self._run_lane, args=(lane,), name=f"lane-{number}", daemon=True)
            thread.start()  # raises RuntimeError when the process may have no more
            self._lanes.append(lane)
            self._threads.append(thread)

    def _drop(self) -> None:
        try:
            self._store.drop(self.wanted.arena, "the operator wants other bytes under this name")
        except FlashBootError as error:  # no holder: it frees the memory once it is back
            log.warning("arena not freed yet", arena=self.wanted.arena, why=str(error))

    # For the lanes, from their threads

    def connect(self, parent: Peer) -> Connected:
        return self._connect(parent, self.wanted.arena)

    def complete(self, lane: int) -> bool:
        arena = self._store.get(self.wanted.arena)
        return arena is not None and arena.marks.verified(lane) == arena.bounds[lane][1]

    def arena_for(self, parent: Peer, meta: ArenaMeta) -> Arena:
        wanted = self.wanted
        _check(wanted, meta, parent)
        with self._taking:
            self.orders.require()
            arena = self._store.get(wanted.arena)
            if arena is not None and not _same(arena, meta):
                self._refuse(arena, wanted, meta, parent)
            if arena is None or arena.state == "allocated":
                documents.check(meta)
            if arena is None:
                arena = self._store.allocate(
                    wanted, meta.nbytes, "clone", lanes=lane_count(meta.nbytes, len(wanted.lanes))
                )
                self.orders.require()  # memory may take minutes; who comes after us has it to himself
            if arena.state == "allocated":
                arena.accusations = self.accusations
                with arena.pinned():
                    arena.adopt_documents(meta, now())
            self._start_lanes(arena)
            return arena

    def accuse(self, parent: Peer, problem: Problem) -> None:
        with self._accusing:
            others = [each for each in self.accusations if each.node != parent.node]
            self.accusations = [*others, Accusation(node=parent.node, problem=problem, at=now())][-16:]
        arena = self._store.get(self.wanted.arena)
        if arena is not None:
            arena.accusations = self.accusations
        self._notify()

    def news(self, *, small: bool = False) -> None:
        (self._moved if small else self._notify)()

    def _refuse(self, arena: Arena, wanted: WantedArena, meta: ArenaMeta, parent: Peer) -> None:
        """The parent holds other bytes under this name: raises Cancelled when they are what is wanted, to begin anew;
        DigestMismatch when ours may well be right."""
        updated = wanted.digest is None and meta.version > arena.record.version
        if wanted.digest == meta.digest or arena.marks.counter(BYTES_IN) == 0 or updated:
            log.warning("clone begins anew", arena=arena.name, had=arena.record.digest, parent_has=meta.digest)
            self._anew = True
            self.orders.halt()
            raise Cancelled
        raise DigestMismatch(
            f"{arena.name} on {parent.node} has the digest {meta.digest}; what is here is of {arena.record.digest}"
        )


def _same(arena: Arena, meta: ArenaMeta) -> bool:
    """Whether what is here is of the parent's bytes and layout, as far as that is known."""
    record = arena.record
    documents = (record.digest or meta.digest, record.layout_digest or meta.layout_digest)
    return (arena.nbytes, *documents) == (meta.nbytes, meta.digest, meta.layout_digest)


def _check(wanted: WantedArena, meta: ArenaMeta, parent: Peer) -> None:
    """Refuse before the first byte.

    Raises IdentityMismatch or DigestMismatch when the parent holds something else than what is wanted."""
    if wanted.identity is not None and meta.identity != wanted.identity:
        raise IdentityMismatch(
            f"{wanted.arena} on {parent.node} has the full identity {meta.identity}, wanted is {wanted.identity}"
        )
    if wanted.digest is not None and meta.digest != wanted.digest:
        raise DigestMismatch(f"{wanted.arena} on {parent.node} has the digest {meta.digest}, wanted is {wanted.digest}")
    if wanted.layout_digest is not None and meta.layout_digest != wanted.layout_digest:
        raise DigestMismatch(
            f"{wanted.arena} on {parent.node} has a layout with the digest {meta.layout_digest}, "
            f"wanted is {wanted.layout_digest}"
        )
