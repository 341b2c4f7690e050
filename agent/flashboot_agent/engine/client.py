"""The plug-in's side of the attach protocol (wire/attach.py): ask for an arena, seed it, keep the connection.

Holds always: every wait has a deadline and a message that names the socket, the pod and the rank; an agent that is away
is waited for; after any loss of the connection the client says hello anew and the agent's answer decides what follows,
so that no state has to be remembered across restarts of the agent. Nothing is ever loaded from here.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Final

from flashboot_agent.core.digest import document_digest
from flashboot_agent.core.errors import (
    CloneFailed,
    DeadlineExceeded,
    DigestMismatch,
    FlashBootError,
    Retryable,
    TornFrame,
    from_problem,
)
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.keeper import Keeper
from flashboot_agent.engine.log import Patient, log
from flashboot_agent.engine.mapping import read_layout
from flashboot_agent.engine.settings import Deadlines, EngineSettings
from flashboot_agent.memory.memfd import close_all, sealed_copy
from flashboot_agent.wire.attach import (
    Allocate,
    Clear,
    Coming,
    Commit,
    FromAgent,
    Hello,
    Ready,
    Refused,
    Seed,
    Trouble,
    Writable,
)
from flashboot_agent.wire.control import Place, Problem

RETRY_SECONDS: Final = 1.0
TELL_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 30.0
"""An agent that owes a word every half second and says none for this long is taken for dead: connect again."""

SLOWEST_BYTES_PER_SECOND: Final = 100 << 20
"""No node is slower at touching, digesting and sealing pages; beyond that an answer is overdue."""


@dataclass(frozen=True)
class Sealed:
    """A resident arena: `descriptor` is the caller's to close."""

    arena: str
    nbytes: int
    digest: str
    descriptor: int
    layout: bytes


@dataclass(frozen=True)
class MustSeed:
    """This engine loads the checkpoint and fills the arena."""

    arena: str


class AgentClient:
    """One rank's conversation with its node's agent."""

    def __init__(self, settings: EngineSettings, deadlines: Deadlines, place: Place, identity: dict[str, str]) -> None:
        self._settings = settings
        self._deadlines = deadlines
        self._hello = Hello(place=place, identity=identity)
        self._channel: Channel | None = None
        self._held: tuple[FromAgent, list[int]] | None = None
        self._keeper: Keeper | None = None
        self._chosen = False
        self.who = f"pod {os.environ.get('POD_NAME') or socket.gethostname()}, rank {place}, {settings.socket}"

    @property
    def identity(self) -> dict[str, str]:
        """The full identity that this engine asks with."""
        return self._hello.identity

    @property
    def place(self) -> Place:
        """This rank's place."""
        return self._hello.place

    @property
    def chosen(self) -> bool:
        """The agent chose this engine to seed, on the connection that is open; another connection asks anew."""
        return self._chosen

    # -- asking ----------------------------------------------------------------------------------------------

    def wait_allocated(self) -> int:
        """Return once the arenas of all ranks of this pod have their memory, or once this engine is told to seed.

        That is the memory-sampling rule: SGLang sizes its KV cache from the memory that is free before the load, the
        least that any rank finds, so the arenas' pages must be gone from it by then. Bytes are not waited for.

        Returns the bytes of this rank's arena that are allocated by now; 0 for a seed. Raises as `wait` does.
        """
        message, descriptors = self._await_offer(until_allocated=True)
        self._held = (message, descriptors)
        return message.bytes if isinstance(message, Coming | Ready) else 0

    def wait(self) -> Sealed | MustSeed:
        """Wait for the agent's decision.

        Raises:
            DeadlineExceeded: the agent stayed away, or no byte came in time.
            CloneFailed: a clone stood still for `cloneTimeoutSeconds`.
            FlashBootError: what the agent refused with, for good.
        """
        message, descriptors = self._await_offer(until_allocated=False)
        if isinstance(message, Seed):
            close_all(descriptors)
            self._chosen = True
            return MustSeed(message.arena)
        assert isinstance(message, Ready)
        return self._sealed(message, descriptors)

    def _await_offer(self, *, until_allocated: bool) -> tuple[FromAgent, list[int]]:
        patient = Patient(f"{self.who}: waiting for the arena")
        first_byte = time.monotonic() + self._deadlines.arena
        heard_at = moved_at = time.monotonic()
        watermark = 0
        while True:
            try:
                message, descriptors = self._take(SILENCE_SECONDS)
            except (OSError, TornFrame) as error:
                if time.monotonic() > heard_at + self._deadlines.connect:
                    raise DeadlineExceeded(
                        f"{self.who}: no word of the agent that makes sense within {self._deadlines.connect:.0f} s; "
                        f"the last attempt ended with: {error}"
                    ) from error
                log.warning("%s: lost the agent while waiting for the arena (%s), asking again", self.who, error)
                self.drop()
                time.sleep(RETRY_SECONDS)
                continue
            heard_at = time.monotonic()
            if isinstance(message, Ready | Seed):
                return message, descriptors
            close_all(descriptors)
            if isinstance(message, Refused):
                self._refused(message.problem, first_byte)
                continue
            if not isinstance(message, Coming):
                raise TornFrame(f"{self.who}: {message.type} came while the arena was awaited")
            if until_allocated and message.allocated:
                return message, []
            now = time.monotonic()
            if message.watermark != watermark:  # less than before: another arena, or one that begins anew
                moved_at, watermark = now, message.watermark
            patient.say(f"{message.note} ({message.watermark} of {message.bytes} bytes)")
            under_way = 0 < watermark < message.bytes
            if not under_way and now > first_byte:
                what = (
                    f"{watermark} bytes of the arena came, but no leave to use them"
                    if watermark
                    else "no byte of the arena"
                )
                raise DeadlineExceeded(
                    f"{self.who}: {what} within {self._deadlines.arena:.0f} s; last word: {message.note}"
                )
            if under_way and now > moved_at + self._settings.clone_timeout_seconds:
                raise CloneFailed(
                    f"{self.who}: the clone has stood at {watermark} of {message.bytes} bytes for "
                    f"{self._settings.clone_timeout_seconds:.0f} s (cloneTimeoutSeconds); last word: {message.note}"
                )

    def _refused(self, problem: Problem, deadline: float) -> None:
        error = from_problem(problem)
        if not isinstance(error, Retryable) or time.monotonic() > deadline:
            raise error
        log.warning("%s: the agent says %s: %s; asking again", self.who, problem.reason, problem.message)
        self.drop()
        time.sleep(RETRY_SECONDS)

    # -- seeding ---------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Two descriptors of the arena's memory, to write and to read, the caller's to close. Only while `chosen`.

        Raises OSError when the agent went away (ask `wait` again), else what it refused with.
        """
        self._connected().send(Allocate(bytes=nbytes))
        message, descriptors = self._answer(nbytes, "the arena's memory")
        if not isinstance(message, Writable) or len(descriptors) != 2 or message.bytes != nbytes:
            close_all(descriptors)
            raise TornFrame(f"{self.who}: {message.type} came where {nbytes} writable bytes were asked for")
        return descriptors[0], descriptors[1]

    def commit(self, layout: bytes, nbytes: int) -> Sealed:
        """Hand over the layout; the writable mapping must be gone. Returns when the agent has digested and sealed.

        Raises OSError when the agent went away (ask `wait` again), else what it refused with.
        """
        document = sealed_copy("flashboot-layout", layout)
        try:
            self._connected().send(Commit(), [document])
        finally:
            os.close(document)
        message, descriptors = self._answer(nbytes, "the seal")
        if not isinstance(message, Ready):
            close_all(descriptors)
            raise TornFrame(f"{self.who}: {message.type} came where the seal was awaited")
        return self._sealed(message, descriptors)

    def _answer(self, nbytes: int, what: str) -> tuple[FromAgent, list[int]]:
        seconds = 60 + nbytes / SLOWEST_BYTES_PER_SECOND
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(f"{self.who}: no answer about {what} within {seconds:.0f} s")
            try:
                message, descriptors = self._take(left)
            except TimeoutError:
                continue
            if isinstance(message, Refused):
                close_all(descriptors)
                raise from_problem(message.problem)
            if not isinstance(message, Coming | Seed):  # these answer a hello that came with a reconnect
                return message, descriptors

    # -- after -----------------------------------------------------------------------------------------------

    def attached(self) -> None:
        """Tell the agent that the tensors lie in the sealed arena, and keep the connection for the engine's life."""
        hello = self._hello.model_copy(update={"attached": True})
        channel, self._channel = self._channel, None
        self._keeper = Keeper(self._settings.socket, hello, self.who, channel)
        self._keeper.start()

    def report(self, problem: Problem) -> bool:
        """Show a trouble in the pod's status; False when the agent is away (try again later)."""
        return self._tell(Trouble(problem=problem, place=self._hello.place))

    def clear(self) -> bool:
        """End the trouble; False when the agent is away."""
        return self._tell(Clear(place=self._hello.place))

    def fail(self, error: FlashBootError) -> None:
        """Report an error that ends this engine, if the agent is there to hear it; never hides `error` by another."""
        trouble = Trouble(problem=error.problem(), place=self._hello.place)
        try:
            if self._channel is not None:
                self._channel.send(trouble)
                return
            channel = Channel(self._settings.socket, timeout=TELL_SECONDS)  # no hello: it would ask for an arena
            try:
                channel.send(trouble)
            finally:
                channel.close()
        except OSError as gone:
            log.warning("%s: could not report %s to the agent: %s", self.who, error.reason, gone)

    def close(self) -> None:
        self.drop()
        if self._keeper is not None:
            self._keeper.stop()

    # -- the connection --------------------------------------------------------------------------------------

    def _tell(self, message: Trouble | Clear) -> bool:
        try:
            if self._channel is None:
                self._open(TELL_SECONDS)
            assert self._channel is not None
            self._channel.send(message)
        except OSError as error:
            log.warning("%s: the agent could not be told: %s", self.who, error)
            self.drop()
            return False
        return True

    def _open(self, seconds: float) -> None:
        channel = Channel(self._settings.socket, timeout=seconds)
        try:
            channel.send(self._hello)
        except BaseException:  # whatever it was: nobody else knows the channel yet
            channel.close()
            raise
        self._channel = channel

    def _take(self, timeout: float) -> tuple[FromAgent, list[int]]:
        if self._held is not None:
            held, self._held = self._held, None
            return held
        return self._connected().receive(timeout)

    def _connected(self) -> Channel:
        """The open channel, or a new one that has said hello.

        Raises DeadlineExceeded when nobody serves the socket within the deadline.
        """
        patient = Patient(f"{self.who}: waiting for the agent")
        deadline = time.monotonic() + self._deadlines.connect
        while self._channel is None:
            try:
                self._open(SILENCE_SECONDS)
            except OSError as error:
                patient.say(error.strerror or str(error))
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(
                        f"{self.who}: no agent within {self._deadlines.connect:.0f} s ({error}); is the FlashBoot "
                        "agent of this node running, and does the pod have the csi.flashboot.io volume?"
                    ) from error
                time.sleep(RETRY_SECONDS)
        return self._channel

    def drop(self) -> None:
        """Give the connection up; the next question opens another and says hello anew."""
        self._chosen = False
        if self._held is not None:
            close_all(self._held[1])
            self._held = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _sealed(self, message: Ready, descriptors: list[int]) -> Sealed:
        if len(descriptors) != 2:
            close_all(descriptors)
            raise TornFrame(f"{self.who}: ready came with {len(descriptors)} descriptors instead of arena and layout")
        arena, document = descriptors
        try:
            layout = read_layout(document)
        except BaseException:  # whatever it was: the caller does not get the arena's descriptor
            os.close(arena)
            raise
        finally:
            os.close(document)
        if document_digest(layout) != message.layout_digest:
            os.close(arena)
            raise DigestMismatch(
                f"{self.who}: the layout of {message.arena} differs from its digest {message.layout_digest}; "
                "this node's agent holds it damaged: restart the agent, or delete the arena's pods here"
            )
        return Sealed(message.arena, message.bytes, message.digest, arena, layout)
