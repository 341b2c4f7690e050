"""Agents without memory: real HTTP servers that obey wire/control.py, so that the operator can be tested without nodes.

They keep its rules: epoch and revision fence, an arena lives while a pod uses it or the desired state lists it, a clone
asks its parents in order and accuses those that fail it, a child never gets ahead of its parent.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from functools import partial

import aiohttp
from aiohttp import web

from flashboot_agent.node.identity import NodeIdentity
from flashboot_agent.wire.base import WireModel, now
from flashboot_agent.wire.desired import Accepted, Desired, WantedArena
from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_arena import Accusation, ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod, ObservedRank
from flashboot_agent.wire.problem import Problem
from flashboot_agent.wire.trust import Certificate
from tests.samples import MEMORY

BYTES = 1000
IDENTITY = "sha256:" + "1" * 64
DIGEST = "sha256:" + "2" * 64


@dataclass
class FakeAgent:
    node: str
    ip: str
    port: int
    identity: NodeIdentity
    """The real one: certificates are not played."""
    step: int = 100
    """Bytes that a clone gets per turn."""
    hold_at: int = BYTES
    """A clone goes no further than this."""
    slow_s: float = 0.0
    """How long a question about what it observes takes, as on a node that is short of CPU."""
    seed_seals: bool = True
    seed_problem: Problem | None = None
    desired: Desired | None = None
    epoch: int = 0
    puts: list[Desired] = field(default_factory=list)
    pods: dict[str, ObservedPod] = field(default_factory=dict)
    arenas: dict[str, ObservedArena] = field(default_factory=dict)
    instance: str = field(default_factory=lambda: str(uuid.uuid4()))
    counter: int = 0
    protocol: int = 1
    """Of what it says; anything else is another version's."""

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.put("/v1/desired", self._put),
                web.get("/v1/observed", self._observed),
                web.get("/v1/arenas/{arena}", self._arena),
                web.get("/v1/certificate", self._certificate_request),
                web.put("/v1/certificate", self._certificate),
            ]
        )
        self.identity.load()
        if self._http is None:
            connector = aiohttp.TCPConnector(ssl=False)  # between fakes nothing is at stake
            self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=2))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.ip, self.port, ssl_context=self.identity.context).start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """As a kill: connections break, nothing answers."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._runner:
            assert self._runner.server is not None
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()  # else TLS takes leave of its peer first
            await self._runner.cleanup()
            self._runner = None

    async def close(self) -> None:
        await self.stop()
        if self._http is not None:
            await self._http.close()

    # What the test does

    async def publish(self, uid: str, namespace: str, name: str, model_replica: str) -> None:
        self.pods[uid] = ObservedPod(
            uid=uid, namespace=namespace, name=name, model_replica=model_replica, published_at=now()
        )
        await self._bump()

    async def unpublish(self, uid: str) -> None:
        if self.pods.pop(uid, None) is not None:
            await self._bump()

    def wanted(self, arena: str | None = None) -> WantedArena | None:
        found = [a for a in (self.desired.arenas if self.desired else []) if arena in (None, a.arena)]
        return found[0] if found else None

    def only(self) -> ObservedArena | None:
        return next(iter(self.arenas.values()), None)

    # The protocol

    async def _bump(self) -> None:
        async with self._changed:
            self.counter += 1
            self._changed.notify_all()

    def _answer(self, model: WireModel, status: int = 200) -> web.Response:
        return web.Response(body=model.to_json(), status=status, content_type="application/json")

    async def _certificate_request(self, _: web.Request) -> web.Response:
        return self._answer(self.identity.request())

    async def _certificate(self, request: web.Request) -> web.Response:
        self.identity.credentials.install(Certificate.model_validate_json(await request.read()))
        await self._bump()
        return web.Response()

    async def _put(self, request: web.Request) -> web.Response:
        desired = Desired.model_validate_json(await request.read())
        stale = self.desired is not None and desired.epoch == self.epoch and desired.revision < self.desired.revision
        if desired.epoch < self.epoch or stale:
            return self._answer(Problem(reason="StaleEpoch", message=f"seen {self.epoch}", epoch=self.epoch), 409)
        if desired.node != self.node:
            return self._answer(Problem(reason="WrongNode", message=f"this is {self.node}"), 409)
        self.desired, self.epoch = desired, desired.epoch
        self.puts.append(desired)
        await self._bump()
        return self._answer(Accepted(epoch=desired.epoch, revision=desired.revision))

    async def _observed(self, request: web.Request) -> web.Response:
        after, wait = int(request.query.get("after", "-1")), float(request.query.get("waitSeconds", "0"))
        await asyncio.sleep(self.slow_s)
        async with self._changed:
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait_for(lambda: self.counter > after or after > self.counter)
            except TimeoutError:
                pass
        said = self._said()
        if said.protocol != self.protocol:
            return web.json_response({**said.model_dump(by_alias=True, mode="json"), "protocol": self.protocol})
        return self._answer(said)

    def _said(self) -> Observed:
        return Observed(
            node=self.node,
            instance=self.instance,
            version="test",
            counter=self.counter,
            epoch=self.epoch,
            revision=self.desired.revision if self.desired else 0,
            chunk_address=f"{self.ip}:{self.port}",
            memory=MEMORY,
            certificate_expires_at=self.identity.credentials.expires_at,
            pods=list(self.pods.values()),
            arenas=list(self.arenas.values()),
        )

    async def _arena(self, request: web.Request) -> web.Response:
        arena = self.arenas.get(request.match_info["arena"])
        if arena is None or not arena.bytes:
            return self._answer(Problem(reason="UnknownArena", message="not here"), 404)
        return self._answer(arena)

    # The work

    async def _run(self) -> None:
        while True:
            before = self.counter
            if await self._turn():
                await self._bump()
            if self._busy():
                await asyncio.sleep(0.02)
                continue
            async with self._changed:  # hundreds of idle arenas must not cost the test's CPU
                await self._changed.wait_for(partial(self._newer, before))

    def _newer(self, counter: int) -> bool:
        return self.counter > counter

    def _busy(self) -> bool:
        """Whether anything is to be done though nobody says anything new."""
        for want in self.desired.arenas if self.desired else []:
            mine = self.arenas.get(want.arena)
            here = any(rank.arena == want.arena for pod in self.pods.values() for rank in pod.ranks)
            if (here or want.role == "copy") and want.role != "hold" and (mine is None or mine.state != "sealed"):
                return True
        return False

    async def _turn(self) -> bool:
        changed = False
        wanted = {a.arena: a for a in (self.desired.arenas if self.desired else [])}
        for uid, pod in list(self.pods.items()):
            known = [rank.place for rank in pod.ranks]
            new = [
                ObservedRank(place=a.place, arena=a.arena)
                for a in wanted.values()
                if uid in a.pods and a.place not in known
            ]
            if new:
                self.pods[uid] = pod.model_copy(update={"ranks": [*pod.ranks, *new]})
                changed = True
        for name in list(self.arenas):
            used = any(
                rank.arena == name and rank.phase in ("attached", "seeding")
                for pod in self.pods.values()
                for rank in pod.ranks
            )
            if not used and name not in wanted:
                del self.arenas[name]
                changed = True
        for name, want in wanted.items():
            here = [pod for pod in self.pods.values() if any(rank.arena == name for rank in pod.ranks)]
            if want.role == "seed":
                changed |= self._seed(want, here)
            elif want.role == "copy" or (want.role == "clone" and here):
                changed |= await self._clone(want)
            mine = self.arenas.get(name)
            for pod in here:
                rank = next(rank for rank in pod.ranks if rank.arena == name)
                if mine is not None and mine.state == "sealed" and rank.phase != "attached":
                    times = {"attached_at": now(), "hello_at": now()}
                    self._rank(pod.uid, name, phase="attached", way=mine.way, problem=None, **times)
                    changed = True
        return changed

    def _rank(self, uid: str, arena: str, **facts: object) -> None:
        """The pod's rank that has the arena is this now."""
        pod = self.pods[uid]
        ranks = [rank.model_copy(update=facts) if rank.arena == arena else rank for rank in pod.ranks]
        self.pods[uid] = pod.model_copy(update={"ranks": ranks})

    def _new(self, want: WantedArena, way: str, size: int) -> ObservedArena:
        return ObservedArena.model_validate(
            {
                "arena": want.arena,
                "namespace": want.namespace,
                "model_replica": want.model_replica,
                "model_replica_uid": want.model_replica_uid,
                "expected_identity": want.expected_identity,
                "place": want.place,
                "state": "seeding" if way == "seed" else "allocated",
                "way": way,
                "bytes": size,
                "watermark": 0,
                "created_at": now(),
                "transport": "tcp" if way == "clone" else None,
            }
        )

    def _seed(self, want: WantedArena, here: list[ObservedPod]) -> bool:
        pod = next((p for p in here if p.uid == want.seed_pod), None)
        mine = self.arenas.get(want.arena)
        if pod is None or (mine is not None and mine.state == "sealed"):
            return False
        if self.seed_problem is not None:
            if self.seed_problem not in pod.problems:
                self.arenas.pop(want.arena, None)
                self._rank(pod.uid, want.arena, problem=self.seed_problem, phase="connected")
                return True
            return False
        if mine is None or mine.state != "seeding":
            self.arenas[want.arena] = self._new(want, "seed", BYTES)
            self._rank(pod.uid, want.arena, phase="seeding", hello_at=now(), problem=None)
            return True
        if not self.seed_seals:
            return False
        update = {"state": "sealed", "watermark": BYTES, "sealed_at": now(), "identity": IDENTITY, "digest": DIGEST}
        self.arenas[want.arena] = mine.model_copy(update=update)
        return True

    async def _ask(self, address: str, arena: str) -> ObservedArena | None:
        assert self._http is not None
        async with self._http.get(f"https://{address}/v1/arenas/{arena}") as answer:
            content = await answer.read()
        return ObservedArena.model_validate_json(content) if answer.status == 200 else None

    async def _clone(self, want: WantedArena) -> bool:
        mine = self.arenas.get(want.arena)
        if mine is None:
            self.arenas[want.arena] = self._new(want, "clone", 0)
            return True
        if mine.state == "sealed":
            return False
        blamed = list(mine.accusations)
        for parent in want.lanes[0].parents:
            try:
                theirs = await self._ask(parent.address, want.arena)
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = Problem(reason="ParentUnreachable", message=f"{parent.node}: {error}"[:200])
                if not any(a.node == parent.node for a in blamed):
                    blamed.append(Accusation(node=parent.node, problem=problem, at=now()))
                continue
            if theirs is None:
                continue
            mark = min(theirs.watermark, mine.watermark + self.step, max(self.hold_at, mine.watermark))
            update = {
                "bytes": theirs.bytes,
                "watermark": max(mark, mine.watermark),
                "state": "filling",
                "parent": parent.node,
                "accusations": blamed,
                "started_at": mine.started_at or now(),
            }
            if mark == theirs.bytes:
                update |= {
                    "state": "sealed",
                    "sealed_at": now(),
                    "identity": IDENTITY,
                    "digest": DIGEST,
                    "bytes_in": mark,
                }
            new = mine.model_copy(update=update)
            if new == mine:
                return False
            self.arenas[want.arena] = new
            return True
        if blamed != mine.accusations:
            self.arenas[want.arena] = mine.model_copy(update={"accusations": blamed})
            return True
        return False
