"""What all parts of the agent share: settings, board, pods, desired state, arenas, images, clones, holder."""

from __future__ import annotations

import uuid
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flashboot_agent.holder.client import HolderClient, HolderStats
from flashboot_agent.node import rules
from flashboot_agent.node.board import Board
from flashboot_agent.node.clone import Clone
from flashboot_agent.node.desired import DesiredState
from flashboot_agent.node.identity import NodeIdentity
from flashboot_agent.node.images import ImageStore
from flashboot_agent.node.load import Load
from flashboot_agent.node.pods import Pod, PodTable
from flashboot_agent.node.probes import Probes
from flashboot_agent.node.rules import Answer
from flashboot_agent.node.settings import Settings
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.node.update import ArenaUpdate
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_arena import Evicted
from flashboot_agent.wire.place import Place

if TYPE_CHECKING:
    from flashboot_agent.node.session import Session


@dataclass
class NodeState:
    """Loop side only, but for the store and the board."""

    settings: Settings
    board: Board
    store: ArenaStore
    holder: HolderClient
    pods: PodTable
    desired: DesiredState
    images: ImageStore
    probes: Probes
    identity: NodeIdentity | None = None
    """None: without TLS."""
    clones: dict[str, Clone] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    updates: dict[str, ArenaUpdate] = field(default_factory=dict)
    sessions: set[Session] = field(default_factory=set)
    mismatches: Counter[Answer] = field(default_factory=Counter)
    """Engines of another identity than the arena that was named for them, by what they were told in the end."""
    evicted: deque[Evicted] = field(default_factory=lambda: deque(maxlen=16))
    """What had to make room, the last ones."""
    evictions: int = 0
    """How many that were, all together."""
    instance: str = field(default_factory=lambda: str(uuid.uuid4()))
    stats: HolderStats | None = None
    """The holder's last word; None while it can't be reached."""
    chunk_address: str = ""
    link_bytes_per_second: int | None = None
    """How fast the way to other nodes is, where somebody says."""
    known: bool = False
    """The holder and the door's files were read: from now on an arena that is not here is not here."""

    def wanted_by(self, pod: Pod) -> dict[Place, WantedArena]:
        return rules.arenas_of(pod.meta, self.desired.current)

    def loading(self, wanted: WantedArena, *, used: bool) -> bool:
        """Whether it is, or shall be, filled from its image."""
        arena = self.store.get(wanted.arena)
        begun = arena is not None and arena.record.way == "load"
        image, whole = self.images.find(wanted.arena), self._all_at_hand(wanted)
        return rules.loads(wanted, arena.state if arena else None, image, used=used, begun=begun, whole=whole)

    def _all_at_hand(self, wanted: WantedArena) -> bool:
        """Whether every rank of the pods of this arena has an image or a sealed arena here."""
        ranks = [self.wanted_by(pod).values() for pod in self.pods if pod.uid in wanted.pods]
        names = {each.arena for mine in ranks for each in mine} - {wanted.arena}
        held = {name: self.store.get(name) for name in names}
        sealed = {name for name, arena in held.items() if arena is not None and arena.state == "sealed"}
        return all(name in sealed or self.images.find(name) is not None for name in names)

    def users(self) -> dict[str, list[str]]:
        """Arena → published pods that have it, or belong to it by the last desired state."""
        found: dict[str, list[str]] = {}
        for pod in self.pods:
            for name in pod.arenas | {wanted.arena for wanted in self.wanted_by(pod).values()}:
                found.setdefault(name, []).append(pod.uid)
        return found

    def attached(self) -> set[str]:
        """Arenas that an engine has, or writes."""
        had = {arena for pod in self.pods for arena in pod.arenas}
        return had | {session.seeding for session in self.sessions if session.seeding}

    def holding(self, arena: str) -> list[Pod]:
        """The pods whose engines have this arena, or did before they ended, or write it."""
        seeds = {session.pod.uid for session in self.sessions if session.seeding == arena}
        return [pod for pod in self.pods if arena in pod.arenas or pod.uid in seeds]

    def halves(self) -> set[str]:
        """Sealed arenas of a seed whose engine ended before it sealed those of all its ranks. The pod's next engine
        fills all of them anew: its ranks measure memory together, and must find it alike."""
        found: set[str] = set()
        for pod in self.pods:
            seeded = [each for each in self.wanted_by(pod).values() if each.role == "seed" and each.seed_pod == pod.uid]
            held = [self.store.get(wanted.arena) for wanted in seeded]
            sealed = [arena for arena in held if arena is not None and arena.state == "sealed"]
            if pod.ended and len(sealed) < len(seeded):
                found.update(arena.name for arena in sealed if arena.record.seed_pod == pod.uid)
        return found
