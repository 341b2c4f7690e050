"""One order to bring a resident arena to another version of its weights (wire/update.py), in a thread of its own.

    chain → deltas, all of them, whole, while the arena serves → delta by delta: barred, written, served again
    (node/update_target.py)

Holds always: it ends within the order's seconds, by success or with a problem; the arena is a version then, the one
that its record says, or it is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from flashboot_agent.core.errors import (
    ArenaImmutable,
    BadRequest,
    DeadlineExceeded,
    FlashBootError,
    Refused,
    UnknownArena,
)
from flashboot_agent.delta.window import WINDOW_CHUNKS
from flashboot_agent.logs import Log
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.orders import Cancelled
from flashboot_agent.node.pause import Engine
from flashboot_agent.node.record import Between
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.node.update_target import ArenaTarget, Torn
from flashboot_agent.sync.chain import Step
from flashboot_agent.sync.origin import DirectoryOrigin, Origin
from flashboot_agent.sync.receive import Receiver
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.update import ObservedUpdate, Phase, WantedUpdate

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

log = Log(__name__)

SPOOL: Final = "spool"
"""In an arena's folder: deltas on their way."""
STALL_SECONDS: Final = 10.0
"""Without a byte; then the connection counts as broken."""

Begin = Callable[["ArenaUpdate", Arena, Between], Sequence[Engine]]
"""See update_target.Host; from the update's thread."""


class Meter(Protocol):
    """Metrics, from the updates' threads."""

    def updated(self, seconds: float) -> None:
        """An arena has one version more, and was not served for so long."""

    def update_failed(self, reason: str) -> None: ...


class ArenaUpdate:
    """Runs from `start` until it ended: done, cancelled, or in trouble (`problem`)."""

    def __init__(
        self,
        name: str,
        order: WantedUpdate,
        *,
        node: str,
        folder: Path,
        drain_seconds: float,
        store: ArenaStore,
        begin: Begin,
        meter: Meter,
        changed: Callable[[], None],
        moved: Callable[[], None],
        attempt: int = 1,
        before: Problem | None = None,
    ) -> None:
        """`folder`: of this arena. `changed` is called after each change that is observed, `moved` after those that
        come many times a second. `attempt`, `before`: which one it is, and how the last one failed."""
        self.order, self.attempt = order, attempt
        self._name, self._node, self._folder, self._store = name, node, folder, store
        self._begin, self._changed, self._moved = begin, changed, moved
        self._drain, self._meter = drain_seconds, meter
        self._barred_at = 0.0
        self._until = time.monotonic() + order.seconds
        self._cancelled = threading.Event()
        self._phase: Phase = "fetching"
        self._step: tuple[int, int] | None = None
        self._fetched = self._chunks = self._chunks_total = 0
        self._thread = threading.Thread(target=self._run, name=f"update-{name[-8:]}", daemon=True)
        self.problem: Problem | None = before
        self.retried = True
        self.ended_at: float | None = None
        """When its thread ended, by the monotonic clock."""

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """End it soon, what was written is put back; `join` waits for that."""
        self._cancelled.set()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def observed(self) -> ObservedUpdate:
        base, new = self._step or (None, None)
        return ObservedUpdate(
            wanted=self.order.version,
            phase=self._phase,
            base=base,
            new=new,
            fetched_bytes=self._fetched,
            chunks=min(self._chunks, self._chunks_total),
            chunks_total=self._chunks_total,
            attempts=self.attempt,
            problem=self.problem,
            retried=self.retried,
        )

    # The thread

    def _run(self) -> None:
        try:
            self._bring()
            self.problem = None
        except Cancelled:
            log.info("update cancelled", arena=self._name)
        except Torn as torn:
            self._fail(FlashBootError(str(torn)), retried=True)
        except FlashBootError as error:
            self._fail(error, retried=not isinstance(error, Refused))
        except OSError as error:
            self._fail(FlashBootError(f"{self._name}: node {self._node} failed: {error}"), retried=True)
        except Exception as error:  # a fault of ours is told as one
            log.error("update broke", exc_info=error, arena=self._name)
            self._fail(FlashBootError(f"{self._name}: a fault in the agent of {self._node}: {error!r}"), retried=False)
        finally:
            self._require_version()
            self.ended_at = time.monotonic()
            self._changed()

    def _bring(self) -> None:
        arena = self._store.get(self._name)
        if arena is None:
            raise UnknownArena(f"{self._name} is not on node {self._node}")
        if not arena.region.updatable:
            raise ArenaImmutable(
                f"{self._name} on node {self._node} is sealed against every write, for good: an arena that was made "
                "by an order with `updatable: true` can be updated in place; drop this one, and let it be made so"
            )
        began = time.monotonic()
        with arena.pinned(), _origin(self.order, self.left()) as origin:
            receiver = Receiver(origin, self._folder / SPOOL, _keys(self.order), self._arrived)
            target = ArenaTarget(arena, self._node, self._folder, self, self._drain)
            chain = receiver.fetch(target, self.order.version)
            steps = receiver.follow(target, self.order.version, chain=chain)
        log.info(
            "arena updated",
            arena=self._name,
            version=arena.record.version,
            digest=arena.record.digest,
            deltas=[step.file for step in steps],
            seconds=round(time.monotonic() - began, 3),
        )

    def _arrived(self, step: Step, nbytes: int) -> None:
        self._step, self._fetched = (step.base_version, step.new_version), nbytes
        self.left()
        self._moved()

    def _fail(self, error: FlashBootError, *, retried: bool) -> None:
        log.warning("update failed", arena=self._name, reason=error.reason, why=str(error), retried=retried)
        self.problem, self.retried = error.problem(), retried
        self._phase = "failed"
        self._meter.update_failed(error.reason)

    def _require_version(self) -> None:
        """An arena that is between two versions now, whatever the reason, is none that anybody can use."""
        arena = self._store.get(self._name)
        if arena is None or arena.state != "updating":
            return
        try:
            self._store.drop(self._name, "its update ended between two versions")
        except FlashBootError as error:  # no holder: it frees the memory once it is back
            log.warning("arena not freed yet", arena=self._name, why=str(error))

    # For the target

    def begin(self, arena: Arena, between: Between) -> Sequence[Engine]:
        self.left()
        engines = self._begin(self, arena, between)
        self._phase, self._step = "draining", (between.base, between.new)
        self._barred_at = time.monotonic()
        self._chunks, self._chunks_total = 0, len(arena.meta.chunk_digests) // 8
        log.info("update begins", arena=self._name, versions=str(between))
        self._changed()
        return engines

    def begun(self) -> None:
        self._phase = "applying"
        self._changed()

    def served(self) -> None:
        self._meter.updated(time.monotonic() - self._barred_at)

    def point(self, step: str) -> None:
        if step == "located":
            self.left()
            self._moved()
        elif step == "written":
            self._chunks += WINDOW_CHUNKS

    def left(self) -> float:
        if self._cancelled.is_set():
            raise Cancelled
        left = self._until - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"{self._name} on node {self._node} is not at version {self.order.version} after {self.order.seconds} "
                f"s (was {self._phase}); what was fetched is kept for the next attempt"
            )
        return left


@contextmanager
def _origin(order: WantedUpdate, seconds: float) -> Iterator[Origin]:
    if order.origin.startswith("/"):
        yield DirectoryOrigin(Path(order.origin))
        return
    from flashboot_agent.sync.http import HttpOrigin  # httpx takes long to import, and most agents never need it

    with HttpOrigin(order.origin, seconds=seconds, stall_seconds=STALL_SECONDS) as origin:
        yield origin


def _keys(order: WantedUpdate) -> list[Ed25519PublicKey]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        return [Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)) for key in order.keys]
    except ValueError as error:
        raise BadRequest(f"a key of the order is no Ed25519 public key: {error}") from error
