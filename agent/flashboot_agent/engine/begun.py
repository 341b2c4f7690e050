"""A question to the agent that is under way while the process still imports torch and its engine.

Waiting for the agent, reading and checking a layout, mapping the arena and making torch's own objects for its tensors
need neither torch's Python side nor, for the most part, Python's lock: a thread does it beside the imports. Whoever
needs the answer waits for it here, and gets the thread's error where there is one.
"""

from __future__ import annotations

import mmap
import os
import threading

from flashboot_agent import _native
from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.installed import torch_libraries
from flashboot_agent.engine.log import log
from flashboot_agent.engine.offer import MustSeed, Sealed, opened
from flashboot_agent.wire.layout import Layout


class Attachable:
    """A sealed arena that lies in this process's memory."""

    def __init__(self, sealed: Sealed, layout: Layout, mapping: mmap.mmap) -> None:
        self.sealed = sealed
        self.layout = layout
        self.mapping = mapping


class Begun:
    """The agent's answer to one client, which belongs to the caller again after `answer`."""

    def __init__(self, client: AgentClient) -> None:
        self.client = client
        self._answer: Attachable | MustSeed | None = None
        self._error: BaseException | None = None
        self._answered = threading.Event()
        self._ahead = _native.TorchAhead()
        self._thread = threading.Thread(target=self._run, name="flashboot-begun", daemon=True)
        self._thread.start()

    def answer(self) -> Attachable | MustSeed:
        """Wait for it. Raises as `AgentClient.wait` and `opened` do."""
        self._answered.wait()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def ahead(self) -> _native.TorchAhead:
        """What the thread made of the tensors, for views.by_name. Once torch is imported."""
        self._thread.join()
        return self._ahead

    def close(self) -> None:
        """Nobody wants the answer any more. Idempotent."""
        self._ahead.stop()
        self.client.close()

    def _run(self) -> None:
        try:
            offer = self.client.wait()
            if not isinstance(offer, Sealed):
                self._answer = offer
                return
            again = os.dup(offer.descriptor)
            try:
                layout, mapping = opened(offer, self.client.identity)
                self._answer = Attachable(offer, layout, mapping)
                self._answered.set()
                self._make(layout, again)
            finally:
                os.close(again)
        except BaseException as error:  # noqa: BLE001 - whatever it was: it is raised where the answer is asked for
            self._error = error
        finally:
            self._answered.set()

    def _make(self, layout: Layout, descriptor: int) -> None:
        try:
            self._ahead.make(str(torch_libraries()[0]), layout.table, descriptor)
        except RuntimeError as error:
            log.warning("%s: tensors are made after the import of torch, not beside it: %s", self.client.who, error)
