"""The pods with a door volume on this node, as the door's files and their plug-ins tell. Loop side only.

The door's files are the truth about which pods are here; what plug-ins said is kept on disk too, so that a restarted
agent still knows which arena an attached engine maps before the plug-in has connected again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from flashboot_agent.files import write_atomically
from flashboot_agent.logs import Log
from flashboot_agent.node.board import Board
from flashboot_agent.wire.base import ArenaId, Time, Uid, WireModel, now
from flashboot_agent.wire.control import ObservedPod, PodPhase, Problem, Way
from flashboot_agent.wire.door import PublishedPod

log = Log(__name__)

FILE: Final = "pods.json"
SAVE_SECONDS: Final = 1.0
"""Between two writes that nothing urgent asks for."""


class Told(WireModel):
    """What the plug-in of a pod told, in the file."""

    arena: ArenaId | None = None
    hello_at: Time | None = None
    attached_at: Time | None = None
    way: Way | None = None
    problem: Problem | None = None


_FILE: Final = TypeAdapter(dict[Uid, Told])


@dataclass
class Pod:
    """One published pod."""

    meta: PublishedPod
    told: Told = field(default_factory=Told)
    phase: PodPhase = "published"

    @property
    def uid(self) -> str:
        return self.meta.uid

    def observed(self, arena: str | None) -> ObservedPod:
        return ObservedPod(
            uid=self.meta.uid,
            namespace=self.meta.namespace,
            name=self.meta.name,
            model_replica=self.meta.model_replica,
            arena=self.told.arena or arena,
            phase=self.phase,
            published_at=self.meta.published_at,
            hello_at=self.told.hello_at,
            attached_at=self.told.attached_at,
            way=self.told.way,
            problem=self.told.problem,
        )


class PodTable:
    """UID → pod."""

    def __init__(self, folder: Path, board: Board) -> None:
        self._path = folder / FILE
        self._board = board
        self._pods: dict[str, Pod] = {}
        self._before: dict[str, Told] = {}
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
            pod = self._pods[uid] = Pod(published[uid], self._before.pop(uid, Told()))
            new.append(pod)
            log.info("pod published", pod=uid, namespace=pod.meta.namespace, name=pod.meta.name)
        for pod in gone:
            log.info("pod unpublished", pod=pod.uid, namespace=pod.meta.namespace, name=pod.meta.name)
        if gone or (self._unsaved and time.monotonic() - self._saved_at >= SAVE_SECONDS):
            self._save()
        if new or gone:
            self._board.changed()
        return new, gone

    def phase(self, pod: Pod, phase: PodPhase) -> None:
        if pod.phase != phase:
            pod.phase = phase
            self._board.changed()

    def hello(self, pod: Pod, at: datetime) -> None:
        """The first time that its engine asked counts."""
        if pod.told.hello_at is None:
            self._tell(pod, hello_at=at)

    def attached(self, pod: Pod, arena: str, way: Way) -> None:
        pod.phase = "attached"
        again = pod.told.arena == arena and pod.told.attached_at is not None
        self._tell(pod, arena=arena, way=way, problem=None, attached_at=pod.told.attached_at if again else now())

    def trouble(self, pod: Pod, problem: Problem | None) -> None:
        """On disk by a later `update`: a plug-in that complains without end must not make one write a complaint."""
        if pod.told.problem != problem:
            pod.told = pod.told.model_copy(update={"problem": problem})
            self._unsaved = True
            self._board.changed()

    def _tell(self, pod: Pod, **facts: object) -> None:
        pod.told = pod.told.model_copy(update=facts)
        if self._pods.get(pod.uid) is pod:
            self._save()
        self._board.changed()

    def _save(self) -> None:
        self._unsaved, self._saved_at = False, time.monotonic()
        write_atomically(self._path, _FILE.dump_json({uid: pod.told for uid, pod in self._pods.items()}, by_alias=True))


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
