"""Connections that last as long as the engine: what is said on them is said again to each new agent.

A daemon thread that sleeps in `receive`. When the agent restarts it connects again and repeats itself. It owns no
memory and touches no tensor: whatever happens here, the engine serves on.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Final

from flashboot_agent.core.errors import TornFrame
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.log import Patient, log
from flashboot_agent.engine.messages import FromAgent, Ready, Refused
from flashboot_agent.memory.memfd import close_all
from flashboot_agent.wire.attach_socket import ATTACHED

RETRY_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 3600.0
"""The agent has nothing to say to an engine that serves; waking once an hour costs nothing, and no wait is endless."""


class Kept(threading.Thread, ABC):
    """`greet` is called on each new connection, `heard` for each message of the agent; their OSError connects anew."""

    def __init__(self, name: str, path: str, who: str, channel: Channel | None = None) -> None:
        """Takes over `channel`, if there is one already."""
        super().__init__(name=name, daemon=True)
        self._path = path
        self._who = who
        self._channel = channel
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the thread and the connection; waits until both are gone."""
        self._stopped.set()
        if self._channel is not None:
            self._channel.close()
        self.join(timeout=RETRY_SECONDS * 2)

    def run(self) -> None:
        patient = Patient(f"{self._who}: the agent is away; the engine serves")
        while not self._stopped.is_set():
            try:
                if self._channel is None:
                    self._channel = Channel(self._path, timeout=RETRY_SECONDS)
                    self.greet(self._channel)
                    patient = Patient(f"{self._who}: the agent is away; the engine serves")
                self._listen(self._channel)
            except (OSError, TornFrame) as error:
                if self._channel is not None:
                    self._channel.close()
                    self._channel = None
                if not self._stopped.is_set():
                    patient.say(str(error))
                self._stopped.wait(RETRY_SECONDS)

    @abstractmethod
    def greet(self, channel: Channel) -> None: ...

    @abstractmethod
    def heard(self, channel: Channel, message: FromAgent) -> None: ...

    def _listen(self, channel: Channel) -> None:
        while not self._stopped.is_set():
            try:
                message, descriptors = channel.receive(IDLE_SECONDS)
            except TimeoutError:
                continue
            close_all(descriptors)
            self.heard(channel, message)


class Keeper(Kept):
    """The connection of an attached rank, so that the agent knows that it lives and what it uses."""

    def __init__(self, path: str, hello: bytes, who: str, channel: Channel | None, *, told: bool) -> None:
        """told: the agent heard on `channel` that this engine is attached."""
        super().__init__("flashboot-keeper", path, who, channel)
        self._hello = hello
        self._told = told

    def run(self) -> None:
        if not self._told and self._channel is not None:
            self._say_attached(self._channel)
        super().run()

    def _say_attached(self, channel: Channel) -> None:
        """On the connection that the arena came by; if it is gone, `run` finds out and greets on another."""
        try:
            channel.send(ATTACHED)
        except OSError as error:
            log.warning("%s: the agent could not be told that this engine is attached: %s", self._who, error)

    def greet(self, channel: Channel) -> None:
        channel.send(self._hello)
        log.warning("%s: told the agent again that this engine is attached", self._who)

    def heard(self, channel: Channel, message: FromAgent) -> None:
        if isinstance(message, Ready):
            channel.send(ATTACHED)
        elif isinstance(message, Refused):
            log.error("%s: the agent refuses this attached engine: %s", self._who, message.problem.message)
