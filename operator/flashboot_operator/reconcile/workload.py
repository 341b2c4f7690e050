"""Keep the workload of a ModelReplica as it should be: its Deployment or its groups, and its PodDisruptionBudget."""

from __future__ import annotations

from collections.abc import Sequence

from flashboot_operator.core.budget import budget
from flashboot_operator.core.facts import Key, Trouble, World
from flashboot_operator.core.note import Note
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.workload import TemplateRefused, deployment
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
        self, key: Key, owner: Owner, world: World, plans: Sequence[ArenaPlan], mirror: Mirror
    ) -> tuple[Outcome, list[Note]]:
        """What is wrong with the workload, and what was done about groups."""
        if owner.spec.template is None or owner.going:
            return Outcome(), []
        notes: list[Note] = []
        try:
            if owner.pods_per_replica > 1:
                outcome, notes = await self._groups.ensure(key, owner, world, plans, mirror)
            else:
                wanted = deployment(metadata_of(owner), owner.spec)
                outcome = await self._applier.ensure(wanted, world.deployment, controller=owner.uid)
        except TemplateRefused as error:
            return Outcome(Trouble(error.reason, str(error))), []
        if outcome.trouble is None:
            wanted, live = budget(metadata_of(owner), owner.spec), mirror.budgets.objects.get(key)
            outcome = await self._applier.ensure(wanted, live, controller=owner.uid)
        return outcome, notes
