"""A question to the agent that is under way while the process still imports torch and its engine.

Waiting for the agent, reading and checking a layout and mapping the arena need no torch, and hardly Python's lock: a
thread does it beside the imports. Whoever needs the answer waits for it here, and gets the thread's error where there
is one.
"""

from __future__ import annotations

import threading

from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.offer import MustSeed, Opened, Sealed, opened


class Begun:
    """The agent's answer to one client, which belongs to the caller again after `answer`."""

    def __init__(self, client: AgentClient) -> None:
        self.client = client
        self._answer: tuple[Sealed, Opened] | MustSeed | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flashboot-begun", daemon=True)
        self._thread.start()

    def answer(self) -> tuple[Sealed, Opened] | MustSeed:
        """Wait for it. Raises as `AgentClient.wait` and `opened` do."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def close(self) -> None:
        """Nobody wants the answer any more. Idempotent."""
        self.client.close()

    def _run(self) -> None:
        try:
            offer = self.client.wait()
            self._answer = (offer, opened(offer, self.client.identity)) if isinstance(offer, Sealed) else offer
        except BaseException as error:  # noqa: BLE001 - whatever it was: it is raised where the answer is asked for
            self._error = error
