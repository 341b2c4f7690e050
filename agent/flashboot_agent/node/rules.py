"""Which arena a pod belongs to, what a plug-in is told, what is kept, what is begun. Pure: facts in, decision out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from flashboot_agent.load.image import Manifest
from flashboot_agent.wire.arena import ArenaState
from flashboot_agent.wire.desired import Desired, WantedArena
from flashboot_agent.wire.door import PublishedPod
from flashboot_agent.wire.place import Place

PULLED: Final = ("clone", "copy")
"""Roles under which an arena comes from other nodes."""


def arenas_of(pod: PublishedPod, desired: Desired | None) -> dict[Place, WantedArena]:
    """The wanted arenas of the pod's ranks: those that list it, or else those of its ModelReplica, each the only one of
    its place. The latter is for a while in which no operator has seen the pod; one that the operator bars gets none."""
    if desired is None or pod.uid in desired.barred:
        return {}
    listed = [arena for arena in desired.arenas if pod.uid in arena.pods]
    same = [
        arena
        for arena in desired.arenas
        if pod.model_replica is not None
        and (arena.namespace, arena.model_replica) == (pod.namespace, pod.model_replica)
    ]
    found: dict[Place, WantedArena] = {}
    twice: set[Place] = set()
    for arena in listed or same:
        if arena.place in found and not listed:
            twice.add(arena.place)  # no guess
        found.setdefault(arena.place, arena)
    return {place: arena for place, arena in found.items() if place not in twice}


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
    half: bool = False
    """It is a part of a seed whose engine ended before it sealed the arenas of all its ranks."""


def keeps(name: str, held: Held, desired: Desired | None, *, fresh: bool) -> bool:
    """Rule 3 of the architecture: an arena lives while a published pod uses it, a child still reads a sealed one, or a
    fresh desired state lists it.

    A pod uses it when its engine is attached, or when the last desired state, however old, gives it to the pod.
    """
    if held.state == "updating" or (held.state == "sealed" and held.read):
        return True  # an update ends soon; a source does not go from under a child
    if held.attached and not held.half:
        return True
    if held.half or held.state == "seeding":
        return False  # its engine is gone; half a seed is of no use
    wanted = find(name, desired)
    if wanted is None:
        return False
    if held.state in ("filling", "allocated") and wanted.role not in PULLED and not held.loading:
        return False  # overtaken: this node's pod was elected to load the checkpoint, or nobody needs it here
    return fresh or held.used


def clones(wanted: WantedArena, state: ArenaState | None, *, used: bool) -> bool:
    """Shall a clone of it run here now?"""
    if state in ("sealed", "updating", "seeding") or wanted.role not in PULLED:
        return False
    return used or wanted.role == "copy" or state == "filling"


def loads(
    wanted: WantedArena,
    state: ArenaState | None,
    image: Manifest | None,
    *,
    used: bool,
    begun: bool,
    whole: bool = True,
) -> bool:
    """Shall it be filled from `image`, the one of this arena that is on this node's disk, rather than by a clone or a
    seed? `begun`: what is here of it comes from the image. `whole`: the other ranks of its pods are at hand too; a
    seed fills the arenas of all its ranks or of none.

    A parent is faster than a disk and surely has what is wanted, so that a load begins only where there is none."""
    if image is None or wanted.role == "hold" or state in ("sealed", "updating", "seeding"):
        return False
    if differs(wanted, image):
        return False
    asked = used or wanted.role == "load"
    return begun or (asked and whole and state is None and not any(lane.parents for lane in wanted.lanes))


def differs(wanted: WantedArena, image: Manifest) -> str | None:
    """In what `image` is not what is wanted, as far as the operator says; None: in nothing."""
    facts = (
        ("identity", wanted.identity, image.identity),
        ("digest", wanted.digest, image.digest),
        ("layout's digest", wanted.layout_digest, image.layout_digest),
    )
    return next(
        (f"its {what} is {has}, wanted is {asked}" for what, asked, has in facts if asked not in (None, has)), None
    )


def find(name: str, desired: Desired | None) -> WantedArena | None:
    return next((arena for arena in desired.arenas if arena.arena == name), None) if desired else None


Answer = Literal["coming", "ready", "seed", "refuse"]
"""refuse: another identity, and nothing else for it (node/matching.py)."""


def answer(
    uid: str, wanted: WantedArena | None, state: ArenaState | None, *, loads: bool = False, taken: bool = False
) -> tuple[Answer, str]:
    """What a rank of pod `uid` is told now, and what it waits for. `loads`: an image is, or will be, loaded. `taken`:
    another process of this rank, a copy of the model in the same pod, was asked to fill the arena."""
    if state == "sealed":
        return "ready", ""
    if loads:
        return "coming", "the arena is loaded from its image on this node"
    if taken:
        return "coming", "another engine process of this pod loads the checkpoint"
    if wanted is not None and state is None and _seeds(uid, wanted):
        return "seed", ""
    return "coming", _waits_for(wanted, state)


def unallocated(uid: str, wanted: Mapping[Place, WantedArena], held: Collection[str]) -> list[Place]:
    """The ranks of pod `uid` whose arena has no memory here yet and comes from elsewhere. `held`: arenas that have.

    The memory-sampling rule: while there are any, no rank of the pod may measure free memory. SGLang compares what its
    ranks find, and what an arena will take must be gone by then."""
    return [place for place, each in wanted.items() if each.arena not in held and not _seeds(uid, each)]


def _seeds(uid: str, wanted: WantedArena) -> bool:
    return wanted.role == "seed" and wanted.seed_pod == uid


def _waits_for(wanted: WantedArena | None, state: ArenaState | None) -> str:
    if wanted is None:
        return "the operator has not named an arena for this pod yet"
    if state in ("filling", "allocated"):
        return "a clone is under way"
    if state == "updating":
        return f"{wanted.arena} is brought to another version of its weights"
    if state == "seeding" or wanted.role == "seed":
        return f"pod {wanted.seed_pod} was elected to load the checkpoint"
    if wanted.role == "hold":
        return "the operator asks this node to hold the arena, and it is not here"
    return "a clone begins" if wanted.lanes[0].parents else "a clone waits for a parent"
