"""Which arena a pod belongs to, what a plug-in is told, what is kept, what is begun. Pure: facts in, decision out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashboot_agent.load.image import Manifest
from flashboot_agent.wire.control import ArenaState, Desired, Place, WantedArena
from flashboot_agent.wire.door import PublishedPod


def arena_of(pod: PublishedPod, desired: Desired | None, place: Place | None = None) -> WantedArena | None:
    """The wanted arena that lists the pod, or else the only one of the pod's ModelReplica.

    `place` narrows the choice once the plug-in has said which rank it is.
    """
    if desired is None:
        return None
    arenas = [arena for arena in desired.arenas if place is None or arena.place == place]
    listed = [arena for arena in arenas if pod.uid in arena.pods]
    if listed:
        return listed[0]
    same = [
        arena
        for arena in arenas
        if pod.model_replica is not None
        and (arena.namespace, arena.model_replica) == (pod.namespace, pod.model_replica)
    ]
    return same[0] if len(same) == 1 else None


@dataclass(frozen=True)
class Held:
    """What the rules need to know of an arena here."""

    state: ArenaState
    attached: bool
    """A published pod's engine has it, or an engine is writing it now."""
    used: bool
    """A published pod belongs to it by the last desired state."""
    read: bool = False
    """A child is connected. Those that take nothing are given up by the server, so that this ends."""
    loading: bool = False
    """It is filled from an image, and shall be."""


def keeps(name: str, held: Held, desired: Desired | None, *, fresh: bool) -> bool:
    """Rule 3 of the architecture: an arena lives while a published pod uses it, a child still reads a sealed one, or a
    fresh desired state lists it.

    A pod uses it when its engine is attached, or when the last desired state, however old, gives it to the pod.
    """
    if held.attached or (held.state == "sealed" and held.read):
        return True  # a source does not go from under a child
    if held.state == "seeding":
        return False  # its engine is gone; half a seed is of no use
    wanted = find(name, desired)
    if wanted is None:
        return False
    if held.state in ("filling", "allocated") and wanted.role != "clone" and not held.loading:
        return False  # overtaken: this node's pod was elected to load the checkpoint, or nobody needs it here
    return fresh or held.used


def clones(wanted: WantedArena, state: ArenaState | None, *, used: bool) -> bool:
    """Shall a clone of it run here now?"""
    if state in ("sealed", "seeding") or wanted.role != "clone":
        return False
    return used or state == "filling"


def loads(wanted: WantedArena, state: ArenaState | None, image: Manifest | None, *, used: bool, begun: bool) -> bool:
    """Shall it be filled from `image`, the one of this arena that is on this node's disk, rather than by a clone or a
    seed? `begun`: what is here of it comes from the image.

    A parent is faster than a disk and surely has what is wanted, so that a load begins only where there is none."""
    if image is None or wanted.role == "hold" or state in ("sealed", "seeding"):
        return False
    if wanted.identity not in (None, image.identity) or wanted.digest not in (None, image.digest):
        return False
    return begun or (used and state is None and not any(lane.parents for lane in wanted.lanes))


def find(name: str, desired: Desired | None) -> WantedArena | None:
    return next((arena for arena in desired.arenas if arena.arena == name), None) if desired else None


Answer = Literal["coming", "ready", "seed"]


def answer(
    uid: str, wanted: WantedArena | None, state: ArenaState | None, *, loads: bool = False
) -> tuple[Answer, str]:
    """What the plug-in of pod `uid` is told now, and what it waits for. `loads`: an image is, or will be, loaded."""
    if state == "sealed":
        return "ready", ""
    if loads:
        return "coming", "the arena is loaded from its image on this node"
    if wanted is not None and state is None and wanted.role == "seed" and wanted.seed_pod == uid:
        return "seed", ""
    return "coming", _waits_for(wanted, state)


def _waits_for(wanted: WantedArena | None, state: ArenaState | None) -> str:
    if wanted is None:
        return "the operator has not named an arena for this pod yet"
    if state in ("filling", "allocated"):
        return "a clone is under way"
    if state == "seeding" or wanted.role == "seed":
        return f"pod {wanted.seed_pod} was elected to load the checkpoint"
    if wanted.role == "hold":
        return "the operator asks this node to hold the arena, and it is not here"
    return "a clone begins" if wanted.lanes[0].parents else "a clone waits for a parent"
