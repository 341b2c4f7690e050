"""The connection of one rank to its agent: opened when something is to be said, and each time with a hello.

Holds always: an agent that is away is waited for, with a deadline and a message that names socket, pod and rank; what
came and was not asked for yet is closed with the connection.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from flashboot_agent.core.errors import DeadlineExceeded, FlashBootError
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.log import Patient, log
from flashboot_agent.engine.messages import FromAgent
from flashboot_agent.memory.memfd import close_all

RETRY_SECONDS: Final = 1.0
TELL_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 30.0
"""An agent that owes a word every half second and says none for this long is taken for dead: connect again."""


class Conversation:
    """Used by one thread at a time; `end` may come from any."""

    def __init__(self, path: str, hello: bytes, who: str, connect_seconds: float) -> None:
        self._path = path
        self._hello = hello
        self._who = who
        self._connect_seconds = connect_seconds
        self._channel: Channel | None = None
        self._kept: tuple[FromAgent, list[int]] | None = None
        self.chosen = False
        """The agent asked to seed, on the connection that is open."""
        self._ended = False

    def receive(self, seconds: float) -> tuple[FromAgent, list[int]]:
        """The next message; its descriptors are the caller's to close. Connects first, where that must be.

        Raises OSError, TornFrame; DeadlineExceeded when nobody serves the socket."""
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        return self._connected().receive(seconds)

    def adopt(self, connection: int, packet: bytes, descriptors: list[int]) -> None:
        """Go on with a connection on which the hello was said and an answer came. Takes over all of them."""
        self._channel = Channel.over(self._path, connection, (packet, descriptors))
        if self._ended:  # looked at after it is there, too: `end` may not have seen it
            self.drop()

    def keep(self, message: FromAgent, descriptors: list[int]) -> None:
        """For the next `receive`."""
        self._kept = (message, descriptors)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Raises OSError when the agent went away, DeadlineExceeded when nobody serves the socket."""
        self._connected().send(message, descriptors)

    def tell(self, message: bytes) -> bool:
        """False when the agent is away; it is not waited for."""
        try:
            if self._channel is None:
                self._channel = self._opened(TELL_SECONDS)
            self._channel.send(message)
        except OSError as error:
            log.warning("%s: the agent could not be told: %s", self._who, error)
            self.drop()
            return False
        return True

    def last_word(self, trouble: bytes) -> None:
        """Raises OSError when the agent is away."""
        if self._channel is not None:
            self._channel.send(trouble)
            return
        channel = Channel(self._path, timeout=TELL_SECONDS)  # no hello: it would ask for an arena
        try:
            channel.send(trouble)
        finally:
            channel.close()

    def hand_over(self) -> Channel | None:
        """The open channel, whose owner is the caller from now on."""
        channel, self._channel = self._channel, None
        return channel

    def drop(self) -> None:
        """Give the connection up; the next question opens another and says hello anew."""
        self.chosen = False
        if self._kept is not None:
            close_all(self._kept[1])
            self._kept = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def drop_for_a_moment(self) -> None:
        """Before the same is asked again: never in a hot loop."""
        self.drop()
        time.sleep(RETRY_SECONDS)

    def end(self) -> None:
        """As `drop`, for good: a `receive` in another thread ends with an error. Idempotent."""
        self._ended = True
        self.drop()

    def _opened(self, seconds: float) -> Channel:
        channel = Channel(self._path, timeout=seconds)
        try:
            channel.send(self._hello)
        except BaseException:  # whatever it was: nobody else knows the channel yet
            channel.close()
            raise
        return channel

    def _connected(self) -> Channel:
        """The open channel, or a new one that has said hello."""
        patient = Patient(f"{self._who}: waiting for the agent")
        deadline = time.monotonic() + self._connect_seconds
        while (channel := self._channel) is None or self._ended:
            if self._ended:  # looked at after each connect, too: `end` may not have seen the new channel
                self.drop()
                raise FlashBootError(f"{self._who}: this conversation was closed")
            try:
                self._channel = self._opened(SILENCE_SECONDS)
            except OSError as error:
                patient.say(error.strerror or str(error))
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(
                        f"{self._who}: no agent within {self._connect_seconds:.0f} s ({error}); is the FlashBoot "
                        "agent of this node running, and does the pod have the csi.flashboot.io volume?"
                    ) from error
                time.sleep(RETRY_SECONDS)
        return channel
