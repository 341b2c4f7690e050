"""One conversation with one rank's plug-in over its pod's socket (wire/attach.py). Lives as long as the connection.

    new ──hello──► waiting ──sealed──► served            (ready; attached, problem, clear)
                      └──elected──► asked ──allocate──► writing ──commit──► served
    another identity: an arena of that identity, or refused (node/matching.py); then open for `problem` and `clear` only
    new ──started──► started                            (the process that listens; no rank)

Holds always: a message out of order, malformed or torn is refused, ends the connection and changes nothing; an arena
whose seed goes before its commit is dropped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ValidationError

from flashboot_agent.core.errors import (
    BadRequest,
    DeadlineExceeded,
    FlashBootError,
    IdentityMismatch,
    NotReady,
    UnknownArena,
)
from flashboot_agent.logs import Log
from flashboot_agent.memory import memfd
from flashboot_agent.node import commit, rules
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.desired import error_text
from flashboot_agent.node.matching import Matching
from flashboot_agent.node.packets import Packet, PacketSocket
from flashboot_agent.node.pods import Pod, Rank
from flashboot_agent.node.state import NodeState
from flashboot_agent.version import own_version
from flashboot_agent.wire import attach
from flashboot_agent.wire.base import WireModel, now
from flashboot_agent.wire.control import Place, PodPhase, WantedArena

log = Log(__name__)

SLOWEST_BYTES_PER_SECOND: Final = 100 << 20
"""At which a seed moves its bytes into the arena, at least."""

Step = Literal["new", "waiting", "asked", "writing", "served", "refused", "started"]


class Session:
    """Run by `serve`, one task."""

    def __init__(self, node: NodeState, pod: Pod, socket: PacketSocket) -> None:
        self._node = node
        self._pod = pod
        self._socket = socket
        self._inbox: asyncio.Queue[Packet | BadRequest | None] = asyncio.Queue(maxsize=16)
        self._step: Step = "new"
        self._hello: attach.Hello | None = None
        self._matching: Matching | None = None
        self._differs: IdentityMismatch | None = None
        """What stands between it and the arena that the operator names."""
        self._rank: Rank | None = None
        """Which of the pod's ranks it is, once it said hello."""
        self._served = ""
        """The arena that this plug-in got."""
        self._commit_seconds = 0.0
        self.seeding: str | None = None
        """The arena that this plug-in writes."""

    @property
    def pod(self) -> Pod:
        return self._pod

    @property
    def rank(self) -> Rank | None:
        return self._rank

    @property
    def asked(self) -> str | None:
        """The arena that this plug-in was asked to fill, or fills."""
        wanted = self._wanted() if self._step == "asked" else None
        return self.seeding or (wanted.arena if wanted else None)

    async def serve(self) -> None:
        reader = asyncio.create_task(self._read())
        self._node.sessions.add(self)
        try:
            await self._converse()
        except FlashBootError as error:
            await self._refuse(error)
        except OSError as error:
            log.info("plug-in gone", pod=self._pod.uid, why=str(error))
        finally:
            reader.cancel()
            while not self._inbox.empty():
                if isinstance(packet := self._inbox.get_nowait(), Packet):
                    packet.close()
            self._socket.close()
            self._node.sessions.discard(self)
            self._left()
            self._node.board.changed()  # a half seed is dropped by the next round

    def _left(self) -> None:
        others = [session for session in self._node.sessions if session.pod is self._pod and session.rank is not None]
        if self._rank is not None and all(session.rank is not self._rank for session in others):
            self._node.pods.phase(self._rank, "published")
        if self._rank is not None and not others:
            self._node.pods.ended(self._pod)

    async def _read(self) -> None:
        try:
            while True:
                try:
                    packet: Packet | BadRequest | None = await self._socket.receive()
                except BadRequest as error:
                    packet = error
                await self._inbox.put(packet)
                if not isinstance(packet, Packet):
                    return
        except OSError:
            await self._inbox.put(None)

    async def _converse(self) -> None:
        settings = self._node.settings
        counter = self._node.board.counter
        while True:
            waits = {"new": settings.hello_seconds, "waiting": settings.coming_seconds, "writing": self._commit_seconds}
            seconds = waits.get(self._step)
            packet = await self._next(counter, seconds)
            counter = self._node.board.counter
            if isinstance(packet, BadRequest):
                raise packet
            if packet == "end":
                return
            if isinstance(packet, Packet):
                try:
                    await self._handle(packet)
                finally:
                    packet.close()
            elif self._step == "new":
                raise DeadlineExceeded(f"pod {self._pod.uid}: no hello within {settings.hello_seconds:.0f} s")
            elif self._step == "writing":
                raise DeadlineExceeded(
                    f"pod {self._pod.uid}: no commit of {self.seeding} within {self._commit_seconds:.0f} s"
                )
            if self._step == "waiting":
                await self._answer()

    async def _next(self, counter: int, seconds: float | None) -> Packet | BadRequest | Literal["end"] | None:
        """The next packet; None after `seconds`, or when something changed while we wait for the arena."""
        get = asyncio.create_task(self._inbox.get())
        waits: set[asyncio.Task[object]] = {get}
        if self._step == "waiting":
            waits.add(asyncio.create_task(self._news(counter)))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if get.done():
                packet = get.result()
                return "end" if packet is None else packet
            return None
        finally:
            for task in waits:
                task.cancel()

    async def _news(self, counter: int) -> None:
        """Ends when the answer would be another one than `coming`."""
        seconds = self._node.settings.coming_seconds
        while True:
            counter = await self._node.board.wait(counter, seconds)
            if self._decide()[0] != "coming":
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
                await self._greet(message)
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
                log.warning("engine in trouble", pod=self._pod.uid, place=place, **problem)
                self._node.pods.trouble(self._pod, message.place, message.problem)
            case attach.Started():
                self._require("new", message)
                self._step = "started"
                self._node.pods.started(self._pod, message.times)
            case attach.Clear():
                self._node.pods.trouble(self._pod, message.place, None)
            case attach.Ask():
                await self._send(attach.Agent(node=self._node.settings.node, version=own_version()))

    def _require(self, step: Step, message: BaseModel) -> None:
        if self._step != step:
            raise BadRequest(f"{type(message).__name__.lower()} out of order: this connection is {self._step}")

    async def _greet(self, hello: attach.Hello) -> None:
        self._matching = Matching(hello.identity, hello.place, self._node.settings.mismatch_seconds)
        self._rank = self._node.pods.hello(self._pod, hello.place, self._matching.identity, now())
        self._hello = hello
        self._step = "waiting"
        self._phase("attached" if hello.attached else "connected")
        log.info("plug-in says hello", pod=self._pod.uid, place=str(hello.place), attached=hello.attached)

    async def _allocate(self, nbytes: int) -> None:
        wanted = self._wanted()
        if wanted is None or wanted.role != "seed" or wanted.seed_pod != self._pod.uid:
            self._step = "waiting"
            await self._refuse(NotReady("this pod is no longer the elected seed; wait for ready or seed"))
            return
        self.seeding = wanted.arena
        fds: list[int] = []
        try:
            arena = await asyncio.to_thread(self._node.store.allocate, wanted, nbytes, "seed", seed_pod=self._pod.uid)
            for writable in (True, False):
                fds.append(arena.export(writable=writable))
        except FlashBootError as error:
            memfd.close_all(fds)
            self.seeding = None
            self._trouble(error)
            await self._refuse(error)
            return
        try:
            self._step = "writing"
            self._commit_seconds = self._node.settings.commit_seconds + nbytes / SLOWEST_BYTES_PER_SECOND
            await self._send(attach.Writable(arena=arena.name, bytes=nbytes), fds)
        finally:
            memfd.close_all(fds)

    async def _commit(self, packet: Packet) -> None:
        if len(packet.fds) != 1:
            raise BadRequest(f"commit carries one descriptor, the layout; got {len(packet.fds)}")
        assert self.seeding is not None
        assert self._hello is not None
        # Before the arena is in this frame: what `wait_for` raises keeps its frames until the collector runs.
        document = await self._read_layout(packet.fds[0])
        arena = self._node.store.get(self.seeding)
        if arena is None:
            raise UnknownArena(f"{self.seeding} was dropped while the seed wrote it")
        try:
            await asyncio.to_thread(commit.publish, arena, document, self._hello.identity)
        except BadRequest:
            raise
        except FlashBootError as error:  # still mapped, or another identity: the plug-in may put it right
            await self._refuse(error)
            return
        place = str(self._hello.place)
        log.info(
            "seed sealed",
            arena=arena.name,
            pod=self._pod.uid,
            place=place,
            digest=arena.record.digest,
            bytes=arena.nbytes,
        )
        self.seeding = None
        await self._ready(arena)

    async def _read_layout(self, fd: int) -> bytes:
        seconds = self._node.settings.layout_seconds
        try:
            return await asyncio.wait_for(asyncio.to_thread(commit.read_document, os.dup(fd)), seconds)
        except TimeoutError:
            raise DeadlineExceeded(
                f"pod {self._pod.uid}: its layout could not be read within {seconds:.0f} s"
            ) from None

    def _attached(self) -> None:
        arena = self._node.store.get(self._served)
        seeded = arena is not None and arena.record.seed_pod == self._pod.uid
        loaded = arena is not None and arena.record.way == "load"
        assert self._rank is not None
        self._node.pods.attached(
            self._pod, self._rank, self._served, "seed" if seeded else "load" if loaded else "clone"
        )
        told = self._rank.told
        log.info("engine attached", arena=self._served, pod=self._pod.uid, place=str(told.place), way=told.way)

    # To the plug-in

    def _wanted(self) -> WantedArena | None:
        return self._node.wanted_by(self._pod).get(self._hello.place) if self._hello else None

    def _phase(self, phase: PodPhase) -> None:
        assert self._rank is not None
        self._node.pods.phase(self._rank, phase)

    def _trouble(self, error: FlashBootError) -> None:
        assert self._hello is not None
        self._node.pods.trouble(self._pod, self._hello.place, error.problem())

    def _unallocated(self) -> list[str]:
        """The memory-sampling rule: other ranks of this replica whose memory is not reserved yet."""
        assert self._hello is not None
        held = {arena.name for arena in self._node.store.all()}
        here = {self._hello.place} | {place for each in self._node.sessions if (place := each._has_twin(self._pod))}
        others = {place: each for place, each in self._node.wanted_by(self._pod).items() if place not in here}
        here_late = [f"rank {place} of this pod" for place in rules.unallocated(self._pod.uid, others, held)]
        wanted = self._wanted()
        return here_late + (wanted.elsewhere.get(self._pod.uid, []) if wanted is not None else [])

    def _has_twin(self, pod: Pod) -> Place | None:
        """Its place, when it is a rank of `pod` for which a sealed arena of exactly its identity is here, whatever the
        operator names: it gets that."""
        wanted = self._wanted() if self._pod is pod else None
        if wanted is None or self._matching is None or self._matching.twin(self._node.store, wanted) is None:
            return None
        return wanted.place

    def _decide(self) -> tuple[rules.Answer, str, WantedArena | None, Arena | None]:
        """What the plug-in is told now, why, and about which arena."""
        assert self._hello is not None
        assert self._matching is not None
        self._differs = None
        wanted = self._wanted()
        name = wanted.arena if wanted else self._rank.told.arena if self._rank else None
        arena = self._node.store.get(name) if name else None
        mismatch = self._matching.mismatch(arena, wanted)
        if wanted is not None and (mismatch or arena is None or arena.state != "sealed"):
            twin = self._matching.twin(self._node.store, wanted)
            arena, mismatch = (twin, None) if twin is not None else (arena, mismatch)
        if mismatch is not None:
            why = "its engine has another arena" if self._hello.attached else None
            why = why or self._matching.refused(self._pod.uid, wanted)
            self._differs = IdentityMismatch(f"{mismatch}; {why or 'the operator looks for an arena of this identity'}")
            return "refuse" if why else "coming", str(self._differs), None, None
        state = arena.state if arena else None
        if wanted is None and arena is not None and not self._hello.attached:
            state = None  # a pod that is listed nowhere gets nothing new
        loads = wanted is not None and self._node.loading(wanted, used=True)
        copies = [each for each in self._node.sessions if each is not self and each.pod is self._pod]
        taken = wanted is not None and any(each.asked == name for each in copies)
        answer, note = rules.answer(self._pod.uid, wanted, state, loads=loads, taken=taken)
        if answer == "ready" and not self._hello.attached and (late := self._unallocated()):
            answer, note = "coming", f"all bytes are here; no memory is reserved yet for {', '.join(late)}"
        return answer, note, wanted, arena

    async def _answer(self) -> None:
        assert self._hello is not None
        assert self._matching is not None
        answer, note, wanted, arena = self._decide()
        if self._matching.differed and answer != "coming":
            self._node.mismatches[answer] += 1
        if self._differs is not None:
            self._trouble(self._differs)
        if self._differs is not None and answer == "refuse":
            self._step = "refused"
            await self._refuse(self._differs)
        elif answer == "ready" and arena is not None:
            await self._ready(arena)
        elif answer == "seed" and wanted is not None and not self._hello.attached:
            self._step = "asked"
            self._phase("seeding")
            await self._send(attach.Seed(arena=wanted.arena))
        else:
            if not self._hello.attached:
                self._phase("coming")
            await self._send(self._coming(arena, wanted, note))

    def _coming(self, arena: Arena | None, wanted: WantedArena | None, note: str) -> attach.Coming:
        name = wanted.arena if wanted else ""
        filler = self._node.clones.get(name) or self._node.loads.get(name)
        if filler is not None and (arena is None or arena.state != "sealed"):
            note = filler.problem.message if filler.problem else filler.note
        return attach.Coming(
            allocated=arena is not None and not self._unallocated(),
            bytes=arena.nbytes if arena else 0,
            watermark=arena.watermark if arena else 0,
            note=note[:4096],
        )

    async def _ready(self, arena: Arena) -> None:
        record = arena.record
        assert record.identity is not None
        assert record.digest is not None
        assert record.layout_digest is not None
        assert self._hello is not None
        fds: list[int] = []
        try:
            fds.append(arena.export(writable=False))
            fds.append(arena.export_layout())
            message = attach.Ready(
                arena=arena.name,
                bytes=arena.nbytes,
                identity=record.identity,
                digest=record.digest,
                layout_digest=record.layout_digest,
            )
            await self._send(message, fds)
        finally:
            for fd in fds:
                os.close(fd)
        self._step, self._served = "served", arena.name
        if self._hello.attached:
            self._attached()

    async def _send(self, message: WireModel, fds: Sequence[int] = ()) -> None:
        await self._socket.send(message.to_json(), fds, self._node.settings.send_seconds)

    async def _refuse(self, error: FlashBootError) -> None:
        log.warning("refused", pod=self._pod.uid, reason=error.reason, why=str(error))
        try:
            await self._send(attach.Refused(problem=error.problem()))
        except (OSError, DeadlineExceeded) as gone:
            log.info("plug-in gone", pod=self._pod.uid, why=str(gone))
