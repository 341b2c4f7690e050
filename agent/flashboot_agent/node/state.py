"""What all parts of the agent share: settings, board, pods, desired state, arenas, images, clones, holder."""

from __future__ import annotations

import uuid
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
from flashboot_agent.node.settings import Settings
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.wire.control import Place, WantedArena

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
    identity: NodeIdentity | None = None
    """None: without TLS."""
    clones: dict[str, Clone] = field(default_factory=dict)
    loads: dict[str, Load] = field(default_factory=dict)
    sessions: set[Session] = field(default_factory=set)
    instance: str = field(default_factory=lambda: str(uuid.uuid4()))
    stats: HolderStats | None = None
    """The holder's last word; None while it can't be reached."""
    chunk_address: str = ""
    link_bytes_per_second: int | None = None
    """How fast the way to other nodes is, where somebody says."""
    known: bool = False
    """The holder and the door's files were read: from now on an arena that is not here is not here."""

    def wanted_by(self, pod: Pod, place: Place | None = None) -> WantedArena | None:
        return rules.arena_of(pod.meta, self.desired.current, place)

    def loading(self, wanted: WantedArena, *, used: bool) -> bool:
        """Whether it is, or shall be, filled from its image."""
        arena = self.store.get(wanted.arena)
        begun = arena is not None and arena.record.way == "load"
        image = self.images.find(wanted.arena)
        return rules.loads(wanted, arena.state if arena else None, image, used=used, begun=begun)

    def users(self) -> dict[str, list[str]]:
        """Arena → published pods that have it, or belong to it by the last desired state."""
        found: dict[str, list[str]] = {}
        for pod in self.pods:
            wanted = self.wanted_by(pod)
            for name in {pod.told.arena, wanted.arena if wanted else None} - {None}:
                found.setdefault(str(name), []).append(pod.uid)
        return found

    def attached(self) -> set[str]:
        """Arenas that an engine has, or writes."""
        return {pod.told.arena for pod in self.pods if pod.told.arena} | {
            session.seeding for session in self.sessions if session.seeding
        }
