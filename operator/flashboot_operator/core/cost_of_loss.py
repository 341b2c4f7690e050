"""Whose loss costs least: in which order replicas go when there are too many. For a Deployment's pods and for groups.

First those that are not Ready, since nobody is served by them; then those on nodes that are about to go anyway; last
those that feed others, and after them those that alone hold, for their domain, what new replicas clone. Pure.

Kubernetes compares readiness itself before it compares costs, so a pod's cost says nothing of it. The costs are few
steps, not a rank over all, so that an arrival changes no other pod's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from flashboot_operator.core.facts import Pod, World, domain_of
from flashboot_operator.core.plan import ArenaPlan, Owner

LEAVING, ORDINARY, FEEDS, ALONE = -100, 0, 100, 200
"""Costs; ORDINARY is what Kubernetes takes a pod without the annotation for."""


@dataclass(frozen=True)
class Standing:
    """A replica, as far as its loss matters."""

    name: str
    """What its pods have in common; of a replica of one pod, the pod's UID."""
    pods: tuple[Pod, ...]
    ready: bool
    """All of its pods are there and Ready."""
    since: datetime
    """When the youngest of its pods was made."""
    cost: int = ORDINARY


def cheapest_first(standings: Iterable[Standing]) -> list[Standing]:
    """In the order in which they should go. Among equals the youngest first: it has served least."""
    by_age = sorted(standings, key=lambda s: (s.since, s.name), reverse=True)
    return sorted(by_age, key=lambda s: (s.ready, s.cost))


def standings(owner: Owner, world: World, plans: Sequence[ArenaPlan]) -> list[Standing]:
    """Of all replicas whose pods are not going already, by name."""
    replicas: dict[str, list[Pod]] = {}
    for pod in world.pods:
        if not pod.going:
            replicas.setdefault(pod.replica or pod.uid, []).append(pod)
    feeding, alone = _feeding(plans), _alone(world, plans)
    found = []
    for name, pods in sorted(replicas.items()):
        uids = {pod.uid for pod in pods}
        if any(_leaves(world, pod) for pod in pods):
            cost = LEAVING
        elif uids & alone:
            cost = ALONE
        else:
            cost = FEEDS if uids & feeding else ORDINARY
        ready = len(pods) >= owner.pods_per_replica and all(pod.ready for pod in pods)
        found.append(Standing(name, tuple(pods), ready, max(pod.created for pod in pods), cost))
    return found


def _leaves(world: World, pod: Pod) -> bool:
    node = world.nodes.get(pod.node or "")
    return node is not None and (node.cordoned or not node.ready)


def _feeding(plans: Sequence[ArenaPlan]) -> set[str]:
    """UIDs of pods whose node is an elected source."""
    return {pod.uid for plan in plans for pod in plan.pods if pod.node in {each.node for each in plan.sources.values()}}


def _alone(world: World, plans: Sequence[ArenaPlan]) -> set[str]:
    """UIDs of pods without which some rank's arena would be complete nowhere in their domain."""
    found = set()
    for plan in plans:
        holders: dict[str, list[str]] = {}
        for node in plan.sealed:
            known = world.nodes.get(node)
            if world.agents[node].fresh and not (known is not None and known.cordoned):
                holders.setdefault(domain_of(world, node), []).append(node)
        for nodes in holders.values():
            there = [pod.uid for pod in plan.pods if pod.node == nodes[0]]
            if len(nodes) == 1 and len(there) == 1:  # of two pods on one node, one may go
                found.add(there[0])
    return found
