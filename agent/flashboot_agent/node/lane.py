"""One lane of a clone: one parent after another until every byte of it is verified. One thread.

    connect to a parent → its metadata are ours → advance, look around, advance, … → done
        └─ failed, overdue or lying: accused, and the next parent at once, from the very byte where this one stopped
        └─ starved (it answers and has no byte that we lack): the next parent after a while, without a word against it
        └─ the operator named a better one: left at the next look

Holds always: nothing that was received is received again, but a chunk that differs from its digest; a parent that has
nothing itself is never accused, or a whole tail would accuse upwards.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final, Protocol

from flashboot_agent._native import MarksClosed
from flashboot_agent.core.errors import (
    CloneFailed,
    CommitRefused,
    DeadlineExceeded,
    DigestMismatch,
    FlashBootError,
    InsufficientMemory,
    NotReady,
    UnknownArena,
)
from flashboot_agent.logs import Log
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.feeds import Feed
from flashboot_agent.node.orders import Cancelled, Orders
from flashboot_agent.node.settings import Settings
from flashboot_agent.transport.base import ArenaMeta, Progress, Pull, Sink
from flashboot_agent.transport.choose import Connected
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.problem import Problem

log = Log(__name__)

MOST_PATIENCE: Final = 64.0


class Host(Protocol):
    """The clone, as its lanes need it."""

    @property
    def orders(self) -> Orders: ...

    def connect(self, parent: Peer) -> Connected: ...

    def complete(self, lane: int) -> bool:
        """Every byte of it is verified."""

    def arena_for(self, parent: Peer, meta: ArenaMeta) -> Arena:
        """Our arena, once it is sure that it shall hold what `meta` tells. Raises IdentityMismatch, DigestMismatch,
        BadRequest, InsufficientMemory, NotReady, Cancelled."""

    def accuse(self, parent: Peer, problem: Problem) -> None: ...

    def news(self, *, small: bool = False) -> None:
        """Something that is observed changed; `small`: it does so many times a second."""


@dataclass(frozen=True)
class Failure:
    """Why a parent did not bring the lane to its end. Text only: an exception would keep the frames that it passed."""

    parent: str
    problem: Problem
    kind: str
    """parent: its fault. waits: it has nothing for us yet. node: this node's own trouble."""


class Lane:
    """Made by the clone; `run` once."""

    def __init__(self, number: int, host: Host, settings: Settings) -> None:
        self.number = number
        self.problem: Problem | None = None
        """The present trouble."""
        self.note = "waits for a parent"
        """What it is about, for people."""
        self._host = host
        self._settings = settings
        self._said: tuple[str, str] = ("", "")
        self._patience = 1.0
        self._left: str | None = None
        """The parent that failed in the middle; the next one repairs that."""

    def run(self) -> None:
        """Until the lane is verified to its end. Raises Cancelled."""
        orders = self._host.orders
        pause = self._settings.backoff_seconds
        while not self._host.complete(self.number):
            parents = orders.wait_for_parents(self.number)
            wanted = orders.wanted
            failures: list[Failure] = []
            for parent in parents:
                failure = self._try(parent, parents)
                if failure is None:
                    return
                failures.append(failure)
                if failure.kind == "node" or orders.parents(self.number) != parents:
                    break
            if orders.parents(self.number) != parents:
                pause = self._settings.backoff_seconds
                continue
            if self._tell(failures):
                pause = self._settings.backoff_seconds  # a parent that has nothing yet may have something soon
            orders.wait_for_news(wanted, pause)
            pause = min(2 * pause, self._settings.backoff_most_seconds)

    def _try(self, parent: Peer, parents: list[Peer]) -> Failure | None:
        """None when the lane is complete."""
        try:
            self._pull_from(parent, parents)
            return None
        except MarksClosed:
            raise Cancelled from None
        except FlashBootError as error:
            self._host.orders.require()
            if isinstance(error, DeadlineExceeded):  # on a crowded link all parents would be overdue, for ever
                self._patience = min(2 * self._patience, MOST_PATIENCE)
            failure = Failure(parent.node, error.problem(), _kind(error))
        except OSError as error:
            problem = Problem(reason="Internal", message=f"{self._what()}: this node failed: {error}"[:4096])
            failure = Failure(parent.node, problem, "node")
        self._blame(parent, failure)
        return failure

    def _pull_from(self, parent: Peer, parents: list[Peer]) -> None:
        """Returns when the lane is complete; raises why this parent was left."""
        self.note = f"asks {parent.node}"
        connected = self._host.connect(parent)
        with ExitStack() as stack:
            stack.callback(connected.pull.close)
            arena = self._host.arena_for(parent, connected.pull.meta)
            try:
                stack.enter_context(arena.pinned())
            except UnknownArena:  # our own was dropped since
                raise Cancelled from None
            mapping = stack.enter_context(arena.region.map(writable=True))
            stack.enter_context(closing(connected.pull))  # before the mapping, which it keeps hold of
            self._begin(arena, parent, connected)
            sink = Sink(
                memory=mapping.view,
                marks=arena.marks,
                lane=self.number,
                digests=arena.meta.chunk_digests,
                request_bytes=self._host.orders.wanted.request_bytes,
                patience=self._patience,
            )
            self._advance(arena, connected.pull, sink, parent, parents)

    def _begin(self, arena: Arena, parent: Peer, connected: Connected) -> None:
        arena.feeds.begin(self.number, Feed(parent.node, connected.transport, connected.reason))
        if self._left not in (None, parent.node):
            arena.feeds.repaired()
        self._left = parent.node
        self.problem, self.note = None, f"pulls from {parent.node}"
        start = arena.marks.received(self.number)
        log.info(
            "lane pulls", arena=arena.name, lane=self.number, parent=parent.node, why=connected.reason, start=start
        )
        self._host.news()

    def _advance(self, arena: Arena, pull: Pull, sink: Sink, parent: Peer, parents: list[Peer]) -> None:
        attempts, wrong = 0, -1
        while True:
            before = arena.marks.received(self.number)
            try:
                progress = pull.advance(sink, self._settings.look_seconds)
            except FlashBootError:
                arena.feeds.arrived(self.number, arena.marks.received(self.number) - before, starved=False)
                raise
            if arena.feeds.arrived(self.number, progress.bytes_in, starved=progress.starved):
                self._host.news(small=True)
            if progress.state == "done":
                return
            if progress.state == "differs":
                attempts, wrong = (attempts + 1 if progress.offset == wrong else 1), progress.offset
                self._raise_if_lying(arena, parent, attempts, wrong)
            self._host.orders.require()
            self._raise_if_moved(parent, parents)
            self._raise_if_starved(parent, parents, progress)

    def _raise_if_lying(self, arena: Arena, parent: Peer, attempts: int, offset: int) -> None:
        log.warning("chunk differs", arena=arena.name, parent=parent.node, offset=offset, attempt=attempts)
        if attempts >= self._settings.attempts_per_chunk:
            raise DigestMismatch(
                f"{arena.name}: the chunk at byte {offset} from {parent.node} differed from its digest {attempts} times"
            )

    def _raise_if_moved(self, parent: Peer, parents: list[Peer]) -> None:
        """The operator named other parents since, and not this one first. No parents at all take nothing away."""
        listed = self._host.orders.parents(self.number)
        if listed and listed[0] != parent and (parent not in listed or listed[0] != parents[0]):
            raise NotReady(f"{parent.node} is no longer the parent of {self._what()}, {listed[0].node} is")

    def _raise_if_starved(self, parent: Peer, parents: list[Peer], progress: Progress) -> None:
        if len(parents) > 1 and progress.starved and progress.silent_seconds >= self._settings.stall_seconds:
            raise NotReady(
                f"{self._what()}: no byte from {parent.node} for {progress.silent_seconds:.1f} s; it has bytes up to "
                f"{progress.parent_end} itself"
            )

    def _blame(self, parent: Peer, failure: Failure) -> None:
        said = (parent.node, failure.problem.message)
        if said != self._said:  # a wait asks four times a second, and is told once
            self._said = said
            facts = {"arena": self._host.orders.wanted.arena, "lane": self.number, "parent": parent.node}
            log.warning("lane failed", **facts, reason=failure.problem.reason, why=failure.problem.message)
        if failure.kind == "parent":
            self._host.accuse(parent, failure.problem)

    def _tell(self, failures: list[Failure]) -> bool:
        """Say what is wrong. True when nothing is: all parents wait themselves."""
        told = "; ".join(f"{failure.parent}: {failure.problem.message}" for failure in failures)
        if all(failure.kind == "waits" for failure in failures):
            self.note = f"waits: {told}"
            return True
        if failures[-1].kind == "node":
            self.problem = failures[-1].problem
        else:
            self.problem = CloneFailed(f"every parent of {self._what()} failed: {told}").problem()
        self._host.news()
        return False

    def _what(self) -> str:
        wanted = self._host.orders.wanted
        return wanted.arena if len(wanted.lanes) == 1 else f"{wanted.arena} lane {self.number}"


def _kind(error: FlashBootError) -> str:
    """Whose failure it was."""
    if isinstance(error, NotReady):
        return "waits"
    if isinstance(error, InsufficientMemory | CommitRefused) or type(error) is FlashBootError:
        return "node"
    return "parent"
