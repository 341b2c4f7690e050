"""Keep the workload of a ModelReplica as it should be: its Deployment or its groups, and its PodDisruptionBudget."""

from __future__ import annotations

from collections.abc import Sequence

from flashboot_operator.core.budget import budget
from flashboot_operator.core.design import Design
from flashboot_operator.core.facts import Key, World
from flashboot_operator.core.note import Note
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.kube.client import Kube
from flashboot_operator.reconcile.apply import Applier, Outcome, metadata_of
from flashboot_operator.reconcile.groups import Groups
from flashboot_operator.reconcile.mirror import Mirror


class Workloads:
    def __init__(self, kube: Kube) -> None:
        self._applier = Applier(kube)
        self._groups = Groups(kube, self._applier)

    def forget(self, key: Key) -> None:
        for kind in ("Deployment", "PodDisruptionBudget"):
            self._applier.forget(kind, *key)
        self._groups.forget(key)

    async def ensure(
        self, key: Key, owner: Owner, world: World, plans: Sequence[ArenaPlan], mirror: Mirror, *, design: Design | None
    ) -> tuple[Outcome, list[Note]]:
        """What is wrong with the workload, and what was done about groups. `design`: None where pods are adopted."""
        if design is None or owner.going:
            return Outcome(), []
        notes: list[Note] = []
        if owner.pods_per_replica > 1:
            outcome, notes = await self._groups.ensure(key, owner, world, plans, mirror, design=design)
        elif design.refused is not None:
            outcome = Outcome(design.refused)
        else:
            wanted = design.deployment(owner.spec)
            outcome = await self._applier.ensure(wanted, world.deployment, controller=owner.uid)
        if outcome.trouble is None:
            wanted, live = budget(metadata_of(*key, owner.uid), owner.spec), mirror.budgets.objects.get(key)
            outcome = await self._applier.ensure(wanted, live, controller=owner.uid)
        return outcome, notes
