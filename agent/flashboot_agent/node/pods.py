"""The pods with a door volume on this node, as the door's files and their plug-ins tell. Loop side only.

The door's files are the truth about which pods are here; what plug-ins said is kept on disk too, so that a restarted
agent still knows which arena an attached engine maps before the plug-in has connected again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.files import write_atomically
from flashboot_agent.logs import Log
from flashboot_agent.node.board import Board
from flashboot_agent.wire.arena import Way
from flashboot_agent.wire.base import ArenaId, Digest, Time, Uid, WireModel, now
from flashboot_agent.wire.door import PublishedPod
from flashboot_agent.wire.observed_pod import MAX_RANKS, ObservedPod, ObservedRank, PodPhase, StartupTimes, least_far
from flashboot_agent.wire.place import Place
from flashboot_agent.wire.problem import Problem

log = Log(__name__)

FILE: Final = "pods.json"
SAVE_SECONDS: Final = 1.0
"""Between two writes that nothing urgent asks for."""


class Told(WireModel):
    """What the plug-in of one rank told, in the file."""

    place: Place
    arena: ArenaId | None = None
    hello_at: Time | None = None
    attached_at: Time | None = None
    way: Way | None = None
    identity: Digest | None = None
    """The full identity that it asked for."""
    problem: Problem | None = None


_FILE: Final = TypeAdapter(dict[Uid, list[Told]])


@dataclass
class Rank:
    """One rank of a pod, whose engine has asked."""

    told: Told
    phase: PodPhase = "published"


@dataclass
class Pod:
    """One published pod."""

    meta: PublishedPod
    ranks: dict[Place, Rank] = field(default_factory=dict)
    problem: Problem | None = None
    """What its engine said before any rank spoke."""
    heard_at: datetime | None = None
    """When that changed last."""
    startup: StartupTimes | None = None
    """What the process that listens said; it says so again to each agent."""
    ended: bool = False
    """This agent saw the last of its engine's connections end, and none begin since."""

    @property
    def uid(self) -> str:
        return self.meta.uid

    @property
    def phase(self) -> PodPhase:
        """Of the rank that is least far, of those that asked."""
        return least_far(rank.phase for rank in self.ranks.values())

    @property
    def arenas(self) -> set[str]:
        """Those that its engines attached to, or did before they ended."""
        return {rank.told.arena for rank in self.ranks.values() if rank.told.arena}

    def observed(self, expected: Mapping[Place, str]) -> ObservedPod:
        """`expected`: the arenas that belong to the pod by the last desired state."""
        silent = {place: Rank(Told(place=place)) for place in expected}
        ranks = sorted({**silent, **self.ranks}.items(), key=lambda item: (item[0].draft, item[0].pp, item[0].tp))
        return ObservedPod(
            uid=self.meta.uid,
            namespace=self.meta.namespace,
            name=self.meta.name,
            model_replica=self.meta.model_replica,
            published_at=self.meta.published_at,
            ranks=[_observed(rank, expected.get(place)) for place, rank in ranks][:MAX_RANKS],
            problem=self.problem,
            heard_at=self.heard_at,
            startup=self.startup,
        )


def _observed(rank: Rank, expected: str | None) -> ObservedRank:
    told = rank.told
    return ObservedRank(
        place=told.place,
        arena=told.arena or expected,
        phase=rank.phase,
        hello_at=told.hello_at,
        attached_at=told.attached_at,
        way=told.way,
        identity=told.identity,
        problem=told.problem,
    )


class PodTable:
    """UID → pod."""

    def __init__(self, folder: Path, board: Board) -> None:
        self._path = folder / FILE
        self._board = board
        self._pods: dict[str, Pod] = {}
        self._before: dict[str, list[Told]] = {}
        """What the last agent knew; moves into `_pods` as the pods are seen."""
        self._unsaved = False
        self._saved_at = 0.0

    def __iter__(self) -> Iterator[Pod]:
        return iter(list(self._pods.values()))

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def load(self) -> None:
        try:
            self._before = _FILE.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            log.error("what plug-ins told can't be read", path=str(self._path), why=str(error))

    def update(self, published: dict[str, PublishedPod]) -> tuple[list[Pod], list[Pod]]:
        """Follow the door's files; returns who is new and who is gone."""
        gone = [self._pods.pop(uid) for uid in self._pods.keys() - published.keys()]
        new: list[Pod] = []
        for uid in published.keys() - self._pods.keys():
            told = self._before.pop(uid, [])
            pod = self._pods[uid] = Pod(published[uid], {each.place: Rank(each) for each in told})
            new.append(pod)
            log.info("pod published", pod=uid, namespace=pod.meta.namespace, name=pod.meta.name)
        for pod in gone:
            log.info("pod unpublished", pod=pod.uid, namespace=pod.meta.namespace, name=pod.meta.name)
        if gone or (self._unsaved and time.monotonic() - self._saved_at >= SAVE_SECONDS):
            self._save()
        if new or gone:
            self._board.changed()
        return new, gone

    def phase(self, rank: Rank, phase: PodPhase) -> None:
        if rank.phase != phase:
            rank.phase = phase
            self._board.changed()

    def hello(self, pod: Pod, place: Place, identity: str, at: datetime, *, attached: bool) -> Rank:
        """A rank asks; the first time that it did counts. Raises BadRequest when the pod has too many.

        attached: it has its weights, and lost the agent. Another one begins: what an engine before it in this pod said
        about its start is past."""
        rank = self._rank(pod, place)
        pod.problem, pod.ended = None, False
        if not attached:
            pod.startup = None
        if rank.told.hello_at is None or rank.told.identity != identity:
            self._tell(pod, rank, hello_at=rank.told.hello_at or at, identity=identity)
        return rank

    def given(self, pod: Pod, rank: Rank, arena: str) -> None:
        """Before an engine gets an arena that could be updated: the next agent has to know of it, too."""
        if rank.told.arena != arena:
            self._tell(pod, rank, arena=arena, attached_at=None)

    def attached(self, pod: Pod, rank: Rank, arena: str, way: Way) -> None:
        rank.phase = "attached"
        again = rank.told.arena == arena and rank.told.attached_at is not None
        since = rank.told.attached_at if again else now()
        self._tell(pod, rank, arena=arena, way=way, problem=None, attached_at=since)

    def trouble(self, pod: Pod, place: Place | None, problem: Problem | None) -> None:
        """Of a rank, or of the engine as a whole. On disk by a later `update`: a plug-in that complains without end
        must not make one write a complaint. Raises BadRequest when the pod has too many ranks."""
        if place is None:
            if pod.problem != problem:
                pod.problem, pod.heard_at = problem, now()
                self._board.changed()
            return
        rank = self._rank(pod, place)
        if rank.told.problem != problem:
            rank.told = rank.told.model_copy(update={"problem": problem})
            self._unsaved = True
            self._board.changed()

    def started(self, pod: Pod, times: StartupTimes) -> None:
        """The engine's API is ready; of an engine that was started again the later times count."""
        if pod.startup != times:
            pod.startup = times
            self._board.changed()

    def ended(self, pod: Pod) -> None:
        """No connection of its engine is left."""
        pod.ended = True
        self._board.changed()

    def _rank(self, pod: Pod, place: Place) -> Rank:
        if place not in pod.ranks and len(pod.ranks) >= MAX_RANKS:
            raise BadRequest(f"pod {pod.uid} has {MAX_RANKS} ranks already, and now {place}")
        return pod.ranks.setdefault(place, Rank(Told(place=place)))

    def _tell(self, pod: Pod, rank: Rank, **facts: object) -> None:
        rank.told = rank.told.model_copy(update=facts)
        if self._pods.get(pod.uid) is pod:
            self._save()
        self._board.changed()

    def _save(self) -> None:
        self._unsaved, self._saved_at = False, time.monotonic()
        told = {uid: [rank.told for rank in pod.ranks.values()] for uid, pod in self._pods.items()}
        write_atomically(self._path, _FILE.dump_json(told, by_alias=True))


def read_published(folder: Path, known: dict[str, PublishedPod]) -> dict[str, PublishedPod]:
    """The door's files. One that can't be read is told in the log; a pod that was known stays known then."""
    found: dict[str, PublishedPod] = {}
    try:
        # A name with a dot in front is a file that the door still writes.
        names = [path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith(".")]
    except FileNotFoundError:
        return {}
    for path in names:
        uid = path.stem
        if uid in known:
            found[uid] = known[uid]
            continue
        try:
            pod = PublishedPod.model_validate_json(path.read_bytes())
            if pod.uid != uid:
                raise ValueError(f"the file of {uid} speaks of pod {pod.uid}")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            log.error("the door's word about a pod can't be read", path=str(path), why=str(error))
            continue
        found[uid] = pod
    return found
