"""Which ModelReplicas a node's new word concerns: those of which it says something else than before. Pure.

A node may hold arenas of a hundred, and says something new several times a second while one of them is cloned. To look
at all hundred each time would cost more than everything else that the operator does.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from flashboot_agent.wire.observed import Observed
from flashboot_operator.core.facts import Key


def concerned(seen: Observed | None) -> set[Key]:
    """All of which the node holds something."""
    if seen is None:
        return set()
    arenas = {(a.namespace, a.model_replica) for a in seen.arenas}
    return arenas | {(p.namespace, p.model_replica) for p in seen.pods if p.model_replica}


def news(before: Observed, seen: Observed) -> set[Key] | None:
    """None: any of them, it is about the node itself."""
    if _whole(before) != _whole(seen):
        return None
    arenas = {a.arena: (a, (a.namespace, a.model_replica)) for a in before.arenas}
    there = {a.arena: (a, (a.namespace, a.model_replica)) for a in seen.arenas}
    found = {key for name in arenas.keys() | there.keys() for key in _different(arenas.get(name), there.get(name))}
    pods = {p.uid: (p, (p.namespace, p.model_replica or "")) for p in before.pods}
    now = {p.uid: (p, (p.namespace, p.model_replica or "")) for p in seen.pods}
    found |= {key for uid in pods.keys() | now.keys() for key in _different(pods.get(uid), now.get(uid)) if key[1]}
    if (before.epoch, before.revision) != (seen.epoch, seen.revision):
        # From now on its parents are those that it says, no longer those that it was told (core/targets.py).
        found |= {(a.namespace, a.model_replica) for a in seen.arenas if a.state != "sealed"}
    return found


def _whole(seen: Observed) -> Hashable:
    """What a decision about any of its arenas may look at. When a probe was, nobody asks."""
    probes = tuple((p.arena, p.node, p.failures, p.failing_since, p.recovered_at, p.problem) for p in seen.probes)
    images = tuple((image.arena, image.digest) for image in seen.images)
    return seen.instance, seen.version, seen.chunk_address, seen.link_bytes_per_second, probes, images


def _different(one: tuple[object, Key] | None, other: tuple[object, Key] | None) -> Iterable[Key]:
    return () if one == other else (each[1] for each in (one, other) if each is not None)
