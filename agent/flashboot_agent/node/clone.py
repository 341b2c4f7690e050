"""FlashClone: fill an arena from a parent, and serve it to children at the same time. One thread per clone.

    wait for a parent → connect → compare identity and digest → memory → pull in order, verify each chunk, raise the
    watermark → seal

What was received is not received again: the next parent, and the next process after a kill, go on where the last one
stopped. Only a chunk that differs from its digest is fetched again. A byte is below the watermark only once its chunk
was verified.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from flashboot_agent.core import digest
from flashboot_agent.core.digest import DIGEST_CHUNK_BYTES
from flashboot_agent.core.errors import (
    CloneFailed,
    DigestMismatch,
    FlashBootError,
    IdentityMismatch,
    InsufficientMemory,
    NotReady,
    UnknownArena,
)
from flashboot_agent.logs import Log
from flashboot_agent.node import documents
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.settings import Settings
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.transport.base import ArenaMeta, Pull
from flashboot_agent.transport.choose import Choice
from flashboot_agent.wire.base import now
from flashboot_agent.wire.control import Accusation, Peer, Problem, WantedArena

log = Log(__name__)


class Cancelled(Exception):
    """The arena is no longer wanted here, or not from this parent; nobody's fault."""


@dataclass(frozen=True)
class CloneDone:
    """For metrics."""

    seconds: float
    nbytes: int
    parent: str


class Clone:
    """A clone in its own thread, from `start` until it ended by success or `cancel`; it never gives up by itself."""

    def __init__(
        self,
        wanted: WantedArena,
        store: ArenaStore,
        choose: Callable[[Peer], Choice],
        settings: Settings,
        *,
        notify: Callable[[], None],
        done: Callable[[CloneDone], None],
    ) -> None:
        self._wanted = wanted
        self._store = store
        self._choose = choose
        self._settings = settings
        self._notify = notify
        self._done = done
        self._changed = threading.Condition()
        self._cancelled = False
        self._revision = 0
        self._pull: Pull | None = None
        self._parent: Peer | None = None
        self._said: tuple[str, str] = ("", "")
        self._thread = threading.Thread(target=self._run, name=f"clone-{wanted.arena[-8:]}", daemon=True)
        self.ended_at: float | None = None
        """When its thread ended, by the monotonic clock."""
        self.problem: Problem | None = None
        self.accusations: list[Accusation] = []
        """The last of each parent, newest last."""
        self.created_at = now()
        self.note = "waits for a parent"

    @property
    def wanted(self) -> WantedArena:
        return self._wanted

    def start(self) -> None:
        self._thread.start()

    def update(self, wanted: WantedArena) -> None:
        """A new desired state. It ends a back-off, and leaves a parent that is no longer listed."""
        with self._changed:
            if wanted == self._wanted:
                return
            self._wanted = wanted
            self._revision += 1
            self._changed.notify_all()
            left = self._pull if self._unlisted() else None
        if left is not None:
            left.close()

    def cancel(self) -> None:
        """End it at once; `join` waits for the thread."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
            pull = self._pull
        if pull is not None:
            pull.close()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # The thread

    def _run(self) -> None:
        try:
            self._until_sealed()
        except Cancelled:
            log.info("clone cancelled", arena=self._wanted.arena)
        except UnknownArena as error:
            log.info("clone ended", arena=self._wanted.arena, why=str(error))
        finally:
            self.ended_at = time.monotonic()
            self._notify()

    def _until_sealed(self) -> None:
        if self._finish_complete():
            return
        pause = self._settings.backoff_seconds
        while True:
            wanted, revision = self._wait_for_parents()
            failures: dict[str, FlashBootError] = {}
            for parent in wanted.lanes[0].parents:
                try:
                    self._clone_from(parent)
                    return
                except FlashBootError as error:
                    self._raise_if_cancelled()
                    if self._unlisted():
                        break  # the operator took it away; that is why it ended
                    self._blame(parent, error)
                    failures[parent.node] = error
                if self._revision != revision or isinstance(_last(failures), InsufficientMemory):
                    break
            if self._revision == revision:
                pause = self._pause_after(failures, revision, pause)
            else:
                pause = self._settings.backoff_seconds

    def _finish_complete(self) -> bool:
        """True when nothing is left to pull: the process before us ended between the last byte and the seal."""
        arena = self._store.get(self._wanted.arena)
        if arena is None or arena.watermark < arena.nbytes:
            return False
        if arena.state == "filling":
            with arena.pinned():
                arena.seal_clone()
        return True

    def _pause_after(self, failures: dict[str, FlashBootError], revision: int, pause: float) -> float:
        """Say what is wrong and wait; a new desired state ends the wait. Returns the next pause."""
        told = "; ".join(f"{node}: {error}" for node, error in failures.items())
        waiting = all(isinstance(error, NotReady) for error in failures.values())
        if waiting:  # parents that have nothing yet are no trouble
            self.note = f"waits: {told}"
            pause = self._settings.backoff_seconds
        elif not isinstance(_last(failures), InsufficientMemory):
            self._trouble(CloneFailed(f"every parent of {self._wanted.arena} failed: {told}").problem())
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or self._revision != revision, timeout=pause)
        self._raise_if_cancelled()
        return min(2 * pause, self._settings.backoff_most_seconds)

    def _wait_for_parents(self) -> tuple[WantedArena, int]:
        with self._changed:
            self._changed.wait_for(lambda: self._cancelled or bool(self._wanted.lanes[0].parents))
            wanted, revision = self._wanted, self._revision
        self._raise_if_cancelled()
        return wanted, revision

    def _clone_from(self, parent: Peer) -> None:
        began = time.monotonic()
        wanted = self._wanted
        self._parent = parent
        choice = self._choose(parent)
        self.note = f"asks {parent.node} over {choice.transport.name}"
        pull = choice.transport.connect(parent, wanted.arena, self._settings.node, self._settings.connect_seconds)
        with self._changed:
            self._pull = pull
        try:
            self._raise_if_cancelled()
            _check(wanted, pull.meta, parent)
            arena = self._arena_for(wanted, pull.meta)
            with arena.pinned():
                arena.parent, arena.transport, arena.transport_reason = (
                    parent.node,
                    choice.transport.name,
                    choice.reason,
                )
                self._trouble(None)
                log.info("clone pulls", arena=arena.name, parent=parent.node, start=arena.received, bytes=arena.nbytes)
                self._fill(arena, pull, parent)
                self._raise_if_cancelled()
                arena.seal_clone()
        except OSError as error:
            raise FlashBootError(f"{wanted.arena}: this node failed: {error}") from error
        finally:
            with self._changed:
                self._pull = None
            pull.close()
        seconds = time.monotonic() - began
        log.info("clone sealed", arena=arena.name, parent=parent.node, bytes=arena.nbytes, seconds=round(seconds, 3))
        self._done(CloneDone(seconds, arena.nbytes, parent.node))

    def _arena_for(self, wanted: WantedArena, meta: ArenaMeta) -> Arena:
        """What is here already of these bytes, or new memory."""
        arena = self._store.get(wanted.arena)
        if arena is not None and (arena.nbytes, arena.record.digest or meta.digest) != (meta.nbytes, meta.digest):
            log.warning("clone begins anew", arena=wanted.arena, had=arena.record.digest, parent_has=meta.digest)
            self._store.drop(wanted.arena, "the parent holds other bytes under this name")
            arena = None
        if arena is None:
            self.note = f"takes {meta.nbytes} bytes of memory"
            arena = self._store.allocate(wanted, meta.nbytes, "clone")
        if arena.state == "allocated":
            arena.adopt_documents(meta, now())
        return arena

    def _fill(self, arena: Arena, pull: Pull, parent: Peer) -> None:
        with arena.region.map(writable=True) as mapping:
            attempts, last = 0, -1
            while arena.watermark < arena.nbytes:
                wrong = self._pull_until_wrong(arena, pull, parent, mapping.view)
                if wrong is None:
                    continue
                attempts, last = (attempts + 1 if wrong == last else 1), wrong
                log.warning("chunk differs", arena=arena.name, parent=parent.node, offset=wrong, attempt=attempts)
                arena.refetch(wrong)
                if attempts >= self._settings.attempts_per_chunk:
                    raise DigestMismatch(
                        f"{arena.name}: the chunk at byte {wrong} from {parent.node} differed from its digest "
                        f"{attempts} times"
                    )

    def _pull_until_wrong(self, arena: Arena, pull: Pull, parent: Peer, view: memoryview) -> int | None:
        """Pull and verify to the end, or to the first chunk whose digest differs: its offset."""
        digests = pull.meta.chunk_digests
        if (wrong := _verify(arena, view, digests)) is not None:
            return wrong  # received before a restart, or from another parent
        moved = time.monotonic()
        with closing(pull.stream(arena.received, view)) as stream:
            for piece in stream:
                self._raise_if_cancelled()
                if self._unlisted():
                    raise NotReady(f"{parent.node} is no longer a parent of {arena.name}")
                if piece.nbytes == 0:
                    self._raise_if_stalled(arena, parent, moved, piece.parent_watermark)
                    continue
                moved = time.monotonic()
                arena.received_to(piece.offset + piece.nbytes, piece.nbytes)
                if (wrong := _verify(arena, view, digests)) is not None:
                    return wrong
        return None

    def _raise_if_stalled(self, arena: Arena, parent: Peer, moved: float, parent_watermark: int) -> None:
        silent = time.monotonic() - moved
        if silent < self._settings.stall_seconds:
            return
        raise NotReady(
            f"{arena.name}: no byte from {parent.node} for {silent:.1f} s; its own watermark stands at "
            f"{parent_watermark} of {arena.nbytes}"
        )

    def _unlisted(self) -> bool:
        """The operator listed other parents since. An empty list takes nothing away from a clone that runs."""
        parents = self._wanted.lanes[0].parents
        return self._parent is not None and bool(parents) and self._parent not in parents

    def _raise_if_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled

    def _blame(self, parent: Peer, error: FlashBootError) -> None:
        if (said := (parent.node, str(error))) != self._said:  # a wait asks four times a second, and is told once
            self._said = said
            log.warning("clone failed", arena=self._wanted.arena, parent=said[0], reason=error.reason, why=said[1])
        if isinstance(error, NotReady):
            return
        if isinstance(error, InsufficientMemory) or type(error) is FlashBootError:  # this node's; no parent is to blame
            self._trouble(error.problem())
            return
        others = [each for each in self.accusations if each.node != parent.node]
        self.accusations = [*others, Accusation(node=parent.node, problem=error.problem(), at=now())][-16:]
        arena = self._store.get(self._wanted.arena)
        if arena is not None:
            arena.accusations = self.accusations
        self._notify()

    def _trouble(self, problem: Problem | None) -> None:
        self.problem = problem
        arena = self._store.get(self._wanted.arena)
        if arena is not None:
            arena.trouble(problem)
        self._notify()


def _last(failures: dict[str, FlashBootError]) -> FlashBootError | None:
    """The last failure."""
    return next(reversed(failures.values()), None)


def _verify(arena: Arena, view: memoryview, digests: bytes) -> int | None:
    """Raise the watermark over every whole chunk that was received; the offset of the first that differs."""
    while (start := arena.watermark) < arena.nbytes:
        end = min(start + DIGEST_CHUNK_BYTES, arena.nbytes)
        if end > arena.received:
            return None
        number = start // DIGEST_CHUNK_BYTES
        with view[start:end] as chunk:
            found = digest.chunk_digest(chunk)
        if found != int.from_bytes(digests[8 * number : 8 * number + 8], "little"):
            return start
        arena.verified_to(end)
    return None


def _check(wanted: WantedArena, meta: ArenaMeta, parent: Peer) -> None:
    """Refuse before the first byte.

    Raises IdentityMismatch or DigestMismatch when the parent holds something else than what is wanted, BadRequest or
    IdentityMismatch when its documents don't belong together."""
    if wanted.identity is not None and meta.identity != wanted.identity:
        raise IdentityMismatch(
            f"{wanted.arena} on {parent.node} has the full identity {meta.identity}, wanted is {wanted.identity}"
        )
    if wanted.digest is not None and meta.digest != wanted.digest:
        raise DigestMismatch(f"{wanted.arena} on {parent.node} has the digest {meta.digest}, wanted is {wanted.digest}")
    documents.check(meta)
