"""One conversation with one rank's plug-in over its pod's socket (wire/attach.py). Lives as long as the connection.

    new ──hello──► waiting ──sealed──► served            (ready; attached, problem, clear)
                      └──elected──► asked ──allocate──► writing ──commit──► served
    another identity: an arena of that identity, or refused (node/matching.py); then open for `problem` and `clear` only
    new ──started──► started                            (the process that listens; no rank)

Holds always: a message out of order, malformed or torn is refused, ends the connection and changes nothing; an arena
whose seed goes before its commit is dropped.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ValidationError

from flashboot_agent.core.errors import BadRequest, DeadlineExceeded, FlashBootError, NotReady, UnknownArena
from flashboot_agent.logs import Log
from flashboot_agent.memory import memfd
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.desired import error_text
from flashboot_agent.node.line import Line
from flashboot_agent.node.packets import Packet, PacketSocket
from flashboot_agent.node.pods import Pod, Rank
from flashboot_agent.node.question import Question
from flashboot_agent.node.seeding import Seeding
from flashboot_agent.node.state import NodeState
from flashboot_agent.version import own_version
from flashboot_agent.wire import attach
from flashboot_agent.wire.observed_pod import PodPhase

log = Log(__name__)

Step = Literal["new", "waiting", "asked", "writing", "served", "refused", "started"]


class Session:
    """Run by `serve`, one task."""

    def __init__(self, node: NodeState, pod: Pod, socket: PacketSocket) -> None:
        self._node = node
        self._line = Line(socket, pod.uid, node.settings.send_seconds)
        self._step: Step = "new"
        self._seeding = Seeding(node, pod)
        self._served = ""
        """The arena that this plug-in got."""
        self.pod = pod
        self.question: Question | None = None
        """Once it said hello."""

    @property
    def rank(self) -> Rank | None:
        """Which of the pod's ranks it is, once it said hello."""
        return self.question.rank if self.question is not None else None

    @property
    def seeding(self) -> str | None:
        """The arena that this plug-in writes."""
        return self._seeding.arena

    @property
    def asked(self) -> str | None:
        """The arena that this plug-in was asked to fill, or fills."""
        wanted = self.question.wanted() if self.question is not None and self._step == "asked" else None
        return self.seeding or (wanted.arena if wanted else None)

    async def serve(self) -> None:
        self._line.start()
        self._node.sessions.add(self)
        try:
            await self._converse()
        except FlashBootError as error:
            await self._line.refuse(error)
        except OSError as error:
            log.info("plug-in gone", pod=self.pod.uid, why=str(error))
        finally:
            self._line.close()
            self._node.sessions.discard(self)
            self._left()
            self._node.board.changed()  # a half seed is dropped by the next round

    def _left(self) -> None:
        rank = self.rank
        others = [each for each in self._node.sessions if each.pod is self.pod and each.rank is not None]
        if rank is not None and all(each.rank is not rank for each in others):
            self._node.pods.phase(rank, "published")
        if rank is not None and not others:
            self._node.pods.ended(self.pod)

    async def _converse(self) -> None:
        settings = self._node.settings
        counter = self._node.board.counter
        while True:
            waiting = self._question if self._step == "waiting" else None
            waits = {
                "new": settings.hello_seconds,
                "waiting": settings.coming_seconds,
                "writing": self._seeding.seconds,
            }
            packet = await self._line.next(waits.get(self._step), self._news(waiting, counter) if waiting else None)
            counter = self._node.board.counter
            if packet == "end":
                return
            if isinstance(packet, Packet):
                try:
                    await self._handle(packet)
                finally:
                    packet.close()
            elif self._step == "new":
                raise DeadlineExceeded(f"pod {self.pod.uid}: no hello within {settings.hello_seconds:.0f} s")
            elif self._step == "writing":
                raise DeadlineExceeded(
                    f"pod {self.pod.uid}: no commit of {self.seeding} within {self._seeding.seconds:.0f} s"
                )
            if self._step == "waiting":
                await self._answer()

    async def _news(self, question: Question, counter: int) -> None:
        """Ends when the answer would be another one than `coming`."""
        seconds = self._node.settings.coming_seconds
        while True:
            counter = await self._node.board.wait(counter, seconds)
            if question.decide().answer != "coming":
                return

    # From the plug-in

    async def _handle(self, packet: Packet) -> None:
        try:
            message = attach.from_engine.validate_json(packet.data)
        except ValidationError as error:
            raise BadRequest(f"not a message of the attach protocol: {error_text(error)}") from error
        if packet.fds and not isinstance(message, attach.Commit):
            raise BadRequest(f"{message.type} carries no descriptors, got {len(packet.fds)}")
        match message:
            case attach.Hello():
                self._require("new", message)
                self._greet(message)
            case attach.Allocate():
                self._require("asked", message)
                await self._allocate(message.bytes)
            case attach.Commit():
                self._require("writing", message)
                await self._commit(packet)
            case attach.Attached():
                self._require("served", message)
                self._attached()
            case attach.Trouble():
                place = str(message.place or "")
                problem = message.problem.model_dump(exclude_none=True)
                log.warning("engine in trouble", pod=self.pod.uid, place=place, **problem)
                self._node.pods.trouble(self.pod, message.place, message.problem)
            case attach.Started():
                self._require("new", message)
                self._step = "started"
                self._node.pods.started(self.pod, message.times)
            case attach.Clear():
                self._node.pods.trouble(self.pod, message.place, None)
            case attach.Ask():
                await self._line.send(attach.Agent(node=self._node.settings.node, version=own_version()))

    def _require(self, step: Step, message: BaseModel) -> None:
        if self._step != step:
            raise BadRequest(f"{type(message).__name__.lower()} out of order: this connection is {self._step}")

    def _greet(self, hello: attach.Hello) -> None:
        self.question = Question(self._node, self.pod, hello)
        self._step = "waiting"
        self._phase("attached" if hello.attached else "connected")
        log.info("plug-in says hello", pod=self.pod.uid, place=str(hello.place), attached=hello.attached)

    async def _allocate(self, nbytes: int) -> None:
        wanted = self._question.wanted()
        if wanted is None or wanted.role != "seed" or wanted.seed_pod != self.pod.uid:
            self._step = "waiting"
            await self._line.refuse(NotReady("this pod is no longer the elected seed; wait for ready or seed"))
            return
        try:
            arena, fds = await self._seeding.allocate(wanted, nbytes)
        except FlashBootError as error:
            self._trouble(error)
            await self._line.refuse(error)
            return
        try:
            self._step = "writing"
            await self._line.send(attach.Writable(arena=arena, bytes=nbytes), fds)
        finally:
            memfd.close_all(fds)

    async def _commit(self, packet: Packet) -> None:
        document = await self._seeding.layout(packet)
        try:
            arena = await self._seeding.commit(document, self._question.hello)
        except (BadRequest, UnknownArena):
            raise
        except FlashBootError as error:  # still mapped, or another identity: the plug-in may put it right
            await self._line.refuse(error)
            return
        await self._ready(arena)

    def _attached(self) -> None:
        rank = self._question.rank
        arena = self._node.store.get(self._served)
        seeded = arena is not None and arena.record.seed_pod == self.pod.uid
        loaded = arena is not None and arena.record.way == "load"
        self._node.pods.attached(self.pod, rank, self._served, "seed" if seeded else "load" if loaded else "clone")
        log.info("engine attached", arena=self._served, pod=self.pod.uid, place=str(rank.told.place), way=rank.told.way)

    # To the plug-in

    @property
    def _question(self) -> Question:
        """After the hello, which `_require` makes sure of."""
        assert self.question is not None
        return self.question

    def _phase(self, phase: PodPhase) -> None:
        self._node.pods.phase(self._question.rank, phase)

    def _trouble(self, error: FlashBootError) -> None:
        self._node.pods.trouble(self.pod, self._question.hello.place, error.problem())

    async def _answer(self) -> None:
        question = self._question
        decision = question.decide()
        if question.differed and decision.answer != "coming":
            self._node.mismatches[decision.answer] += 1
        if decision.differs is not None:
            self._trouble(decision.differs)
        if decision.differs is not None and decision.answer == "refuse":
            self._step = "refused"
            await self._line.refuse(decision.differs)
        elif decision.answer == "ready" and decision.arena is not None:
            await self._ready(decision.arena)
        elif decision.answer == "seed" and decision.wanted is not None and not question.hello.attached:
            self._step = "asked"
            self._phase("seeding")
            await self._line.send(attach.Seed(arena=decision.wanted.arena))
        else:
            if not question.hello.attached:
                self._phase("coming")
            await self._line.send(question.coming(decision))

    async def _ready(self, arena: Arena) -> None:
        if arena.record.updatable:  # noted before it is sent: from here on nobody updates it
            self._node.pods.given(self.pod, self._question.rank, arena.name)
        await self._line.hand_over(arena)
        self._step, self._served = "served", arena.name
        if self._question.hello.attached:
            self._attached()
