"""Keep the groups of a ModelReplica as they should be: a StatefulSet and a Service each, restarted as a whole.

What to do is pure code (core/turnover.py, core/together.py, core/groupset.py); here it is done, at most once, and never
to an object that is not ours: a deletion names the UID that was seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from flashboot_operator.core.cost_of_loss import cheapest_first, standings
from flashboot_operator.core.design import Design
from flashboot_operator.core.facts import Key, Pod, Raw, World
from flashboot_operator.core.groupset import (
    ANNOTATION_TEMPLATE,
    group_name,
    ordinal_of,
    service,
)
from flashboot_operator.core.note import Note
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.together import ANNOTATION_TOGETHER, Pauses, all_met, loss_of, note_of
from flashboot_operator.core.turnover import Group, next_step
from flashboot_operator.kube.client import Conflict, Kube, NotFound, Object
from flashboot_operator.reconcile.apply import Applier, Outcome, metadata_of, path_of
from flashboot_operator.reconcile.mirror import Mirror

log = logging.getLogger(__name__)

MOST = 32
"""Groups that are made, and that go, at one look: so that a large step is not finished when it is not wanted any more.
What is left over follows with the next look, for which the watch asks once it has shown these."""
GRACE_S = 2
"""For the pods of a group that is broken: no request of theirs can be answered any more."""


class Groups:
    def __init__(self, kube: Kube, applier: Applier) -> None:
        self._kube = kube
        self._applier = applier
        self._pauses = Pauses()
        self._known: dict[Key, set[str]] = {}

    def forget(self, key: Key) -> None:
        for name in self._known.pop(key, set()):
            self._applier.forget("StatefulSet", key[0], name)
            self._applier.forget("Service", key[0], name)

    async def ensure(
        self, key: Key, owner: Owner, world: World, plans: Sequence[ArenaPlan], mirror: Mirror, *, design: Design
    ) -> tuple[Outcome, list[Note]]:
        notes = []
        for name, set_ in sorted(world.sets.items()):  # also while a template is refused: those that serve go on
            notes += await self._together(owner, world, name, set_)
        if design.refused is not None:
            return Outcome(design.refused), notes
        current = {name for name, set_ in world.sets.items() if _template(set_) == design.digest}
        step = next_step(
            _groups(owner, world, plans, current),
            replicas=1 if owner.spec.replicas is None else owner.spec.replicas,
            max_surge=owner.spec.rollout.max_surge,
            max_unavailable=owner.spec.rollout.max_unavailable,
            taken=_taken(owner, world, mirror.sets_of(key)),
        )
        if step.delete and not current and owner.wants_replicas:  # No group may go for one that can never be.
            name = group_name(owner.name, 1 + max(_taken(owner, world, mirror.sets_of(key)), default=0))
            outcome = await self._applier.trial(design.stateful_set(name))
            if outcome.trouble is not None:
                return outcome, notes
        gone = step.delete[:MOST]
        for name in gone:
            await self._delete("StatefulSet", world.sets[name])
            self._applier.forget("StatefulSet", key[0], name)
            why = "there are more than wanted" if name in current else "it is of an older template"
            notes.append(Note("Normal", "GroupRemoved", "Scale", f"replica {name} goes: {why}", _uid(world.sets[name])))
        names = (current - {*gone}) | {group_name(owner.name, ordinal) for ordinal in step.create[:MOST]}
        return await self._apply(key, owner, design, world, mirror, names=names), notes

    async def _apply(
        self, key: Key, owner: Owner, design: Design, world: World, mirror: Mirror, *, names: set[str]
    ) -> Outcome:
        """Those of the present template as they should be; of the others, their Services."""
        for name in sorted(names):
            self._known.setdefault(key, set()).add(name)
            live = mirror.sets.objects.get((key[0], name))
            outcome = await self._applier.ensure(design.stateful_set(name), live, controller=owner.uid)
            if outcome.trouble is not None:
                return outcome
        for name, set_ in sorted(world.sets.items()):  # those just made get theirs when they are seen
            wanted = service(metadata_of(*key, owner.uid), name, _uid(set_))
            there = mirror.services.objects.get((key[0], name))
            outcome = await self._applier.ensure(wanted, there, controller=_uid(set_))
            if outcome.trouble is not None:
                return outcome
        return Outcome()

    async def _together(self, owner: Owner, world: World, name: str, set_: Raw) -> list[Note]:
        """Restart the group when one of its engines left the others; else note who is together."""
        pods = [pod for pod in world.pods if pod.replica == name]
        note = (set_["metadata"].get("annotations") or {}).get(ANNOTATION_TOGETHER, "")
        loss = loss_of(note, pods)
        if loss is None:
            there = [pod for pod in pods if not pod.going]
            if all_met(owner, there, world.agents) and note_of(there) != note:
                change = {"uid": _uid(set_), "annotations": {ANNOTATION_TOGETHER: note_of(there)}}
                await self._kube.merge(path_of("StatefulSet", owner.namespace, name), {"metadata": change})
            return []
        if not self._pauses.over(_uid(set_), time.monotonic()):
            return []
        for pod in loss.rest:
            await self._delete_pod(pod)
        names = ", ".join(pod.name for pod in loss.rest)
        text = f"replica {name}: {loss.why}; deleted {names}, so that the engines of the group meet anew"
        log.warning("group restarted", extra={"group": name, "why": loss.why, "pods": names})
        return [Note("Warning", "GroupRestarted", "Restart", text, f"{name}|{note}")]

    async def _delete_pod(self, pod: Pod) -> None:
        await self._gone(f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", pod.uid, grace_s=GRACE_S)

    async def _delete(self, kind: str, obj: Raw) -> None:
        meta = obj["metadata"]
        log.info("deleting", extra={"kind": kind, "key": f"{meta['namespace']}/{meta['name']}"})
        await self._gone(path_of(kind, meta["namespace"], meta["name"]), meta["uid"])

    async def _gone(self, path: str, uid: str, grace_s: int | None = None) -> None:
        try:
            await self._kube.delete(path, uid=uid, grace_s=grace_s)
        except (NotFound, Conflict):
            return  # it is gone, or another one of this name is there


def _groups(owner: Owner, world: World, plans: Sequence[ArenaPlan], current: set[str]) -> list[Group]:
    """Those whose loss costs least first; one without pods serves nobody."""
    found = cheapest_first(standings(owner, world, plans))
    podless = sorted(world.sets.keys() - {each.name for each in found})
    made = [Group(name, name in current, ready=False) for name in podless]
    return made + [Group(each.name, each.name in current, each.ready) for each in found if each.name in world.sets]


def _taken(owner: Owner, world: World, sets: Sequence[Object]) -> set[int]:
    """Ordinals of all StatefulSets that are there, and of those whose pods are."""
    names = {set_["metadata"]["name"] for set_ in sets} | {pod.replica for pod in world.pods}
    return {ordinal for name in names if (ordinal := ordinal_of(owner.name, name)) is not None}


def _template(set_: Raw) -> str:
    return str((set_["metadata"].get("annotations") or {}).get(ANNOTATION_TEMPLATE))


def _uid(obj: Raw) -> str:
    return str(obj["metadata"]["uid"])
