"""The plug-in's side of the attach protocol (wire/attach.py): ask for an arena, seed it, keep the connection.

Holds always: every wait has a deadline and a message that names the socket, the pod and the rank; after any loss of the
connection the agent's answer to another hello decides what follows, so that no state has to be remembered across
restarts of the agent. Nothing is ever loaded from here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from flashboot_agent.core.errors import DeadlineExceeded, FlashBootError, Retryable, TornFrame, from_problem
from flashboot_agent.engine import messages
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.conversation import SILENCE_SECONDS, Conversation
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.keeper import Keeper
from flashboot_agent.engine.log import Patient, log, speaker
from flashboot_agent.engine.messages import Coming, FromAgent, Ready, Refused, Seed, Writable, kind_of
from flashboot_agent.engine.offer import MustSeed, Sealed, sealed
from flashboot_agent.engine.progress import Progress
from flashboot_agent.memory.memfd import close_all, sealed_copy
from flashboot_agent.wire.attach_socket import hello
from flashboot_agent.wire.place import Place

if TYPE_CHECKING:
    from flashboot_agent.wire.problem import Problem

SLOWEST_BYTES_PER_SECOND: Final = 100 << 20
"""No node is slower at touching, digesting and sealing pages; beyond that an answer is overdue."""


class AgentClient:
    """One rank's conversation with its node's agent. Used by one thread at a time; `close` may come from any."""

    def __init__(
        self, path: str, deadlines: Deadlines, stall_seconds: float, place: Place, identity: dict[str, str]
    ) -> None:
        """path: of the pod's socket. stall_seconds: how long a clone may stand still. identity: the full one."""
        self.who = speaker(place, path)
        self.place = place
        self.identity = identity
        self._path = path
        self._deadlines = deadlines
        self._stall_seconds = stall_seconds
        said = hello(place, identity, attached=False)
        self._conversation = Conversation(path, said, self.who, deadlines.connect)
        self._keeper: Keeper | None = None
        self._closed = False
        self._closing = Lock()

    @property
    def chosen(self) -> bool:
        """The agent chose this engine to seed, on the connection that is open; another connection asks anew."""
        return self._conversation.chosen

    def adopt(self, connection: int, packet: bytes, descriptors: list[int]) -> None:
        """Go on where somebody asked with this client's hello and got an answer. Before anything else is asked."""
        self._conversation.adopt(connection, packet, descriptors)

    # -- asking ----------------------------------------------------------------------------------------------

    def wait_allocated(self) -> int:
        """Return once the arenas of all ranks of this pod have their memory, or once this engine is told to seed.

        That is the memory-sampling rule: SGLang sizes its KV cache from the memory that is free before the load, the
        least that any rank finds, so the arenas' pages must be gone from it by then. Bytes are not waited for.

        Returns the bytes of this rank's arena that are allocated by now; 0 for a seed. Raises as `wait` does.
        """
        message, descriptors = self._await_offer(until_allocated=True)
        self._conversation.keep(message, descriptors)
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
            self._conversation.chosen = True
            return MustSeed(arena=message.arena)
        assert isinstance(message, Ready)
        return sealed(message, descriptors, self.who)

    def _await_offer(self, *, until_allocated: bool) -> tuple[FromAgent, list[int]]:
        patient = Patient(f"{self.who}: waiting for the arena")
        progress = Progress(self.who, self._deadlines.arena, self._stall_seconds)
        heard_at = time.monotonic()
        while True:
            try:
                message, descriptors = self._conversation.receive(SILENCE_SECONDS)
            except (OSError, TornFrame) as error:
                if time.monotonic() > heard_at + self._deadlines.connect:
                    raise DeadlineExceeded(
                        f"{self.who}: no word of the agent that makes sense within {self._deadlines.connect:.0f} s; "
                        f"the last attempt ended with: {error}"
                    ) from error
                log.warning("%s: lost the agent while waiting for the arena (%s), asking again", self.who, error)
                self._conversation.drop_for_a_moment()
                continue
            heard_at = time.monotonic()
            if isinstance(message, Ready | Seed):
                return message, descriptors
            close_all(descriptors)
            if isinstance(message, Refused):
                self._refused(message.problem, progress)
                continue
            if not isinstance(message, Coming):
                raise TornFrame(f"{self.who}: {kind_of(message)} came while the arena was awaited")
            if until_allocated and message.allocated:
                return message, []
            patient.say(f"{message.note} ({message.watermark} of {message.bytes} bytes)")
            progress.heard(message)

    def _refused(self, problem: Problem, progress: Progress) -> None:
        error = from_problem(problem)
        if not isinstance(error, Retryable) or progress.overdue:
            raise error
        log.warning("%s: the agent says %s: %s; asking again", self.who, problem.reason, problem.message)
        self._conversation.drop_for_a_moment()

    # -- seeding ---------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> tuple[int, int]:
        """Two descriptors of the arena's memory, to write and to read, the caller's to close. Only while `chosen`.

        Raises OSError when the agent went away (ask `wait` again), else what it refused with.
        """
        self._conversation.send(messages.allocate(nbytes))
        message, descriptors = self._answer(nbytes, "the arena's memory")
        if not isinstance(message, Writable) or len(descriptors) != 2 or message.bytes != nbytes:
            close_all(descriptors)
            raise TornFrame(f"{self.who}: {kind_of(message)} came where {nbytes} writable bytes were asked for")
        return descriptors[0], descriptors[1]

    def commit(self, layout: bytes, nbytes: int) -> Sealed:
        """Hand over the layout; the writable mapping must be gone. Returns when the agent has digested and sealed.

        Raises OSError when the agent went away (ask `wait` again), else what it refused with.
        """
        document = sealed_copy("flashboot-layout", layout)
        try:
            self._conversation.send(messages.commit(), [document])
        finally:
            os.close(document)
        message, descriptors = self._answer(nbytes, "the seal")
        if not isinstance(message, Ready):
            close_all(descriptors)
            raise TornFrame(f"{self.who}: {kind_of(message)} came where the seal was awaited")
        return sealed(message, descriptors, self.who)

    def _answer(self, nbytes: int, what: str) -> tuple[FromAgent, list[int]]:
        seconds = 60 + nbytes / SLOWEST_BYTES_PER_SECOND
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded(f"{self.who}: no answer about {what} within {seconds:.0f} s")
            try:
                message, descriptors = self._conversation.receive(left)
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
        self.keep(self._conversation.hand_over(), told=False)

    def keep(self, channel: Channel | None, *, told: bool) -> None:
        """As `attached`, on a connection that the caller opened and hands over. told: it was said there."""
        again = hello(self.place, self.identity, attached=True)
        with self._closing:
            if not self._closed:
                self._keeper = Keeper(self._path, again, self.who, channel, told=told)
                self._keeper.start()
            elif channel is not None:
                channel.close()

    def report(self, problem: Problem) -> bool:
        """Show a trouble in the pod's status; False when the agent is away (try again later)."""
        return self._conversation.tell(messages.trouble(problem, self.place))

    def clear(self) -> bool:
        """End the trouble; False when the agent is away."""
        return self._conversation.tell(messages.clear(self.place))

    def failed(self, error: FlashBootError) -> None:
        log.error("%s: %s: %s", self.who, error.reason, error)
        self.fail(error)

    def fail(self, error: FlashBootError) -> None:
        """Report an error that ends this engine, if the agent is there to hear it; never hides `error` by another."""
        try:
            self._conversation.last_word(messages.trouble(error.problem(), self.place))
        except OSError as gone:
            log.warning("%s: could not report %s to the agent: %s", self.who, error.reason, gone)

    def drop(self) -> None:
        """Give the connection up; the next question opens another and says hello anew."""
        self._conversation.drop()

    def close(self) -> None:
        """End it all; a wait in another thread ends with an error. Idempotent."""
        self._conversation.end()
        with self._closing:
            self._closed = True
        if self._keeper is not None:
            self._keeper.stop()


@contextmanager
def reported(client: AgentClient) -> Iterator[None]:
    """An error inside that ends the engine is told to the agent first, and then goes on its way."""
    try:
        yield
    except FlashBootError as error:
        client.failed(error)
        raise
