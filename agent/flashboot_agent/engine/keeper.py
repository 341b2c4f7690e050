"""Keeps the connection of an attached engine, so that the agent knows that it lives and what it uses.

A daemon thread that sleeps in `receive`. When the agent restarts it connects again and says hello with `attached`. It
owns no memory and touches no tensor: whatever happens here, the engine serves on.
"""

from __future__ import annotations

import threading
from typing import Final

from flashboot_agent.core.errors import TornFrame
from flashboot_agent.engine.channel import Channel
from flashboot_agent.engine.log import Patient, log
from flashboot_agent.memory.memfd import close_all
from flashboot_agent.wire.attach import Attached, Hello, Ready, Refused

RETRY_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 3600.0
"""The agent has nothing to say to an attached engine; waking once an hour costs nothing and leaves no wait endless."""


class Keeper(threading.Thread):
    def __init__(self, path: str, hello: Hello, who: str, channel: Channel | None) -> None:
        super().__init__(name="flashboot-keeper", daemon=True)
        self._path = path
        self._hello = hello
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
        patient = Patient(f"{self._who}: attached and serving; the agent is away")
        fresh = self._channel is not None
        while not self._stopped.is_set():
            try:
                if self._channel is None:
                    self._channel = Channel(self._path, timeout=RETRY_SECONDS)
                    self._channel.send(self._hello)
                    log.warning("%s: told the agent again that this engine is attached", self._who)
                    patient = Patient(f"{self._who}: attached and serving; the agent is away")
                if fresh:
                    self._channel.send(Attached())
                    fresh = False
                self._listen(self._channel)
            except (OSError, TornFrame) as error:
                if self._channel is not None:
                    self._channel.close()
                    self._channel = None
                if not self._stopped.is_set():
                    patient.say(str(error))
                self._stopped.wait(RETRY_SECONDS)

    def _listen(self, channel: Channel) -> None:
        while not self._stopped.is_set():
            try:
                message, descriptors = channel.receive(IDLE_SECONDS)
            except TimeoutError:
                continue
            close_all(descriptors)
            if isinstance(message, Ready):
                channel.send(Attached())
            elif isinstance(message, Refused):
                log.error("%s: the agent refuses this attached engine: %s", self._who, message.problem.message)
