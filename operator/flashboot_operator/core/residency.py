"""Which nodes keep copies that no pod uses, and until when: `spec.residency`, beside the one source that is always kept
while replicas are wanted.

Copies are never made for their own sake: one is what a replica leaves on its node. While pods are there, nodes of
theirs count first, and idle ones fill up to `hostCopies`. When the last pod has gone, that many stay for
`hostTTLSeconds`; since when there is no pod is in the object's status, so that a new operator goes on counting. Pure:
the same facts give the same nodes. Only who was not to have a copy at the last look is remembered, and comes last: it
lets go of it, though it has not said so yet. What is told of all that is in copies.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from flashboot_agent.wire.desired import Eviction
from flashboot_operator.core.facts import Pod, World, domain_of, time_of
from flashboot_operator.core.orders import hold
from flashboot_operator.core.plan import ArenaPlan, Owner


def unused_since(owner: Owner, pods: Iterable[Pod], status: Mapping[str, Any], now: datetime) -> datetime | None:
    """Since when no pod is there and none is wanted, in whole seconds; None while one is. `status`: the last.

    Who adopts pods never says how many are wanted: there the pods alone decide."""
    wanted = owner.spec.template is not None and owner.wants_replicas
    if wanted or any(not pod.going for pod in pods):
        return None
    said = (status.get("residency") or {}).get("unusedSince")
    return time_of(said) or now.replace(microsecond=0)


@dataclass(frozen=True)
class Term:
    """How many copies are to be kept now, and until when."""

    copies: int
    until: datetime | None = None
    """None: as long as there are pods."""


def term(owner: Owner, world: World) -> Term:
    spec = owner.spec.residency
    if owner.going:
        return Term(0)
    if world.unused_since is None:
        return Term(spec.host_copies)
    until = world.unused_since + timedelta(seconds=spec.host_ttl_seconds)
    return Term(spec.host_copies if world.now < until else 0, until)


def keep_copies(
    owner: Owner, world: World, plans: Sequence[ArenaPlan], before: Mapping[str, frozenset[str]]
) -> list[ArenaPlan]:
    """The plans of one set of arenas, their idle copies told to stay. `plans`: of all ranks of the same replicas.
    `before`: Memory.wanted."""
    copies = term(owner, world).copies
    ranks = Counter(node for plan in plans for node in plan.sealed)
    kept = []
    for plan in plans:
        let_go = plan.sealed.keys() - before.get(plan.arena, plan.sealed.keys())
        kept.append(_keep(owner, world, plan, copies=copies, ranks=ranks, let_go=let_go))
    return kept


def _keep(
    owner: Owner, world: World, plan: ArenaPlan, *, copies: int, ranks: Mapping[str, int], let_go: Collection[str]
) -> ArenaPlan:
    if plan.source is None:
        return plan
    source, used = plan.source.node, {pod.node for pod in plan.pods}
    # Those of pods, of pods that are away for a moment, and what a domain clones from (orders.py).
    kept = sorted(node for node in plan.sealed if node in plan.wanted and (node in used or node != source))
    idle: list[str] = []
    if source not in used and (owner.wants_replicas or (len(kept) < copies and source not in let_go)):
        idle.append(source)
    while len(kept) + len(idle) < copies:
        left = plan.sealed.keys() - {*kept, *idle}
        if not left:
            break
        homes = Counter(domain_of(world, node) for node in (*kept, *idle))
        grades = {
            node: (node in let_go, not _sound(world, node), -ranks[node], homes[domain_of(world, node)], node)
            for node in left
        }
        idle.append(min(left, key=grades.__getitem__))
    elsewhere = any(_sound(world, node) for node in kept)
    wanted = dict(plan.wanted)
    for number, node in enumerate(idle):
        may: Eviction = "spare" if elsewhere or number else "never" if owner.wants_replicas else "last"
        before = wanted.get(node) or hold(owner, plan, node)
        wanted[node] = before.model_copy(update={"eviction": may})
    return replace(plan, wanted=wanted)


def _sound(world: World, node: str) -> bool:
    there = world.nodes.get(node)
    return world.agents[node].fresh and there is not None and there.ready and not there.cordoned
