"""A question to the agent that is under way while the process still imports torch and its engine.

A thread asks, checks the layout, maps the arena and makes torch's own objects for its tensors, in one native call each
and without Python's lock. That is the common case: the arena is there, and holds plain tensors of the same identity.
In any other the thread goes on in Python (engine/client.py), which is imported then, with all its patience and words;
importing it takes longer than attaching to 20,000 tensors. Whoever needs the answer waits for it here, and gets the
thread's error where there is one.
"""

from __future__ import annotations

import json
import os
import select
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final

from flashboot_agent._ahead import Ahead
from flashboot_agent.engine.collector import collector_paused
from flashboot_agent.engine.installed import torch_libraries
from flashboot_agent.wire.attach_socket import ATTACHED, hello

if TYPE_CHECKING:
    import mmap

    from flashboot_agent.engine.client import AgentClient
    from flashboot_agent.engine.request import Request
    from flashboot_agent.wire.layout import Layout

FIRST_SECONDS: Final = 30.0
"""For the first answer: an agent owes a word every half second."""
IDLE_SECONDS: Final = 3600.0
"""As the keeper's: an agent has nothing to say to a process that has its weights."""


class Answer:
    """What the agent decided: the arena is sealed, or this process has to load it."""

    def __init__(self, arena: str, nbytes: int = 0, digest: str = "", *, must_seed: bool = False) -> None:
        self.arena = arena
        self.nbytes = nbytes
        self.digest = digest
        self.must_seed = must_seed


class Begun:
    """One process's question, its answer, and afterwards the connection, until `close`."""

    def __init__(self, request: Request) -> None:
        self.request = request
        identity = request.full_identity()
        canonical = json.dumps(identity, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        self._ahead = Ahead(canonical.encode())
        self._hello = hello(request.place, identity, attached=False)
        self._process = os.getpid()
        self._client: AgentClient | None = None
        self._opened: tuple[Layout, mmap.mmap] | None = None
        self._answer: Answer | None = None
        self._error: BaseException | None = None
        self._answered, self._made, self._decided = Event(), Event(), Event()
        self._told = self._closed = False
        self._lock = Lock()
        """Of `_client` and `_closed`."""
        Thread(target=self._run, name="flashboot-begun", daemon=True).start()

    def answer(self) -> Answer:
        """Wait for it. Raises as `AgentClient.wait` and `opened` do."""
        if not self._ours():
            from flashboot_agent.core.errors import BadRequest

            raise BadRequest("the agent was asked before a fork, and its answer is the parent's; call begin after it")
        self._answered.wait()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._answer

    def fill(self, into: dict[str, Any]) -> None:
        """Put every tensor of the sealed arena into an empty dictionary, under each of its names. Imports torch."""
        import torch  # noqa: F401 - if nobody has: the thread waits for it

        self._made.wait()
        if self._error is not None:
            raise self._error
        with collector_paused():
            if self._ahead.fill(into):
                return
        from flashboot_agent.engine.mapping import as_tensor
        from flashboot_agent.engine.offer import Sealed, opened
        from flashboot_agent.engine.views import by_name

        if self._opened is None:
            found = self.answer()
            offer = Sealed(found.arena, found.nbytes, found.digest, self._ahead.descriptor(), self._ahead.document())
            self._opened = opened(offer, self.request.full_identity())
        layout, mapping = self._opened
        by_name(layout, as_tensor(mapping), into)

    def attached(self) -> None:
        """Tell the agent that the tensors are there; the connection stays until `close`."""
        if self._client is not None:
            self._client.attached()
        else:
            self._told = self._ahead.tell(ATTACHED)
            self._decided.set()

    def client(self) -> AgentClient:
        """For everything but an attach without trouble."""
        with self._lock:
            if self._client is None:
                self._client = self.request.client()
                if self._closed:
                    self._client.close()
            return self._client

    def failed(self, error: BaseException) -> None:
        """End it; an error of ours is told to the agent, which shows it in the pod's status."""
        if not self._ours():
            return
        from flashboot_agent.core.errors import FlashBootError

        if isinstance(error, FlashBootError):
            self.client().failed(error)
        self.close()

    def close(self) -> None:
        """Nobody wants the answer any more, or this process no longer counts as a user of the arena. Idempotent; in a
        child of this process it does nothing, since the connection is the parent's."""
        if not self._ours():
            return
        with self._lock:
            self._closed = True
            client = self._client
        self._ahead.stop()
        self._decided.set()
        if client is not None:
            client.close()

    def _ours(self) -> bool:
        return os.getpid() == self._process

    # -- in the thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._ask():
                self._answer = Answer(self._ahead.arena, self._ahead.nbytes, self._ahead.digest)
                self._answered.set()
                self._make()
                self._made.set()
                self._keep()
            elif self._converse():
                self._answered.set()
                self._make()
        except BaseException as error:  # noqa: BLE001 - whatever it was: it is raised where the answer is asked for
            self._error = error
        finally:
            self._answered.set()
            self._made.set()

    def _ask(self) -> bool:
        return self._ahead.ask(self.request.socket, self._hello, min(FIRST_SECONDS, self.request.connect_seconds))

    def _make(self) -> None:
        try:
            self._ahead.make(*map(str, torch_libraries()))
        except RuntimeError as error:
            from flashboot_agent.engine.log import log

            log.warning("tensors are made after the import of torch, not beside it: %s", error)

    def _keep(self) -> None:
        """Once the weights are taken, sleep; what has to be said again to another agent is the keeper's."""
        self._decided.wait()
        news = select.poll()
        news.register(self._ahead.fileno(), select.POLLIN)
        while not news.poll(IDLE_SECONDS * 1000):
            pass
        connection = self._ahead.connection()
        with self._lock:
            if self._told and not self._closed:
                from flashboot_agent.engine.channel import Channel

                channel = Channel.over(self.request.socket, connection)
            else:
                channel = None
                os.close(connection)
            if not self._closed:
                self._client = self._client or self.request.client()
                self._client.keep(channel, told=self._told)

    def _converse(self) -> bool:
        """Whether there are tensors to make."""
        from flashboot_agent.engine.offer import MustSeed, opened

        client = self.client()
        if (said := self._ahead.answer()) is not None:
            client.adopt(*said)
        offer = client.wait()
        if isinstance(offer, MustSeed):
            self._answer = Answer(offer.arena, must_seed=True)
            return False
        taken = self._ahead.take(offer.arena, offer.nbytes, offer.digest, offer.descriptor, offer.layout)
        if taken:
            os.close(offer.descriptor)
        else:
            self._opened = opened(offer, client.identity)
        self._answer = Answer(offer.arena, offer.nbytes, offer.digest)
        return taken
