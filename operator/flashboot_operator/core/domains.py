"""Who feeds each domain, and why; or why nobody does. In words for `status.domains`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashboot_operator.api.status import Domain
from flashboot_operator.core.election import UNSOUND, Source
from flashboot_operator.core.facts import World, domain_of
from flashboot_operator.core.plan import ArenaPlan
from flashboot_operator.core.quarantine import quarantined
from flashboot_operator.core.reasons import NoSourceReason, SourceReason

MOST = 16

WORDS: Mapping[SourceReason, str] = {
    "OnlySealed": "the only node of the domain that holds it",
    "IdleAndSealed": "no engine uses what it holds",
    "ServingAndSealed": "an engine serves from what it holds, and is never paused",
    "SourceDraining": "its node is being drained, and no other node can take its place yet",
    "SourceAccused": "a child complained about it, and no other node can take its place",
    "SourceNodeNotReady": "its node is NotReady, and no other node can take its place",
    "SourceQuarantined": "it cannot be read from, and no other node can take its place",
    "SourceSilent": "its agent does not answer, and no other node can take its place",
}
"""Reason of a source → why this one."""


def domains_of(ranks: Sequence[ArenaPlan], world: World) -> list[Domain]:
    """One entry for each domain that has replicas, that of the home source first. `ranks`: plans of the arenas of one
    replica."""
    if not ranks:
        return []
    first = ranks[0]
    residents: dict[str, int] = {}
    holders = [[domain_of(world, node) for node in plan.sealed] for plan in ranks]
    for name in {name for each in holders for name in each}:
        residents[name] = min(each.count(name) for each in holders)  # ranks of a group lie on several nodes
    for pod in first.pods:
        residents.setdefault(domain_of(world, pod.node or ""), 0)
    home = domain_of(world, first.source.node) if first.source else None
    result = []
    for name in sorted(residents, key=lambda n: (n != home, n))[:MOST]:
        source = first.sources.get(name)
        reason: SourceReason | NoSourceReason
        reason, words = _why(first, source, world) if source else _why_none(first, name, world)
        result.append(
            Domain(
                name=name,
                resident_replicas=residents[name],
                source=source_name(first, source.node) if source else None,
                source_node=source.node if source else None,
                source_reason=reason,
                source_message=words[:1024],
            )
        )
    return result


def source_name(plan: ArenaPlan, node: str) -> str:
    """The first pod on the source's node, or the node when no pod uses its arena."""
    return min((pod.name for pod in plan.pods if pod.node == node), default=node)


def _why(plan: ArenaPlan, source: Source, world: World) -> tuple[SourceReason, str]:
    words = [f"{source.node}: {WORDS[source.reason]}"]
    if source.reason in UNSOUND and plan.copies:
        words.append(f"{', '.join(plan.copies)} clones it ahead, to take its place")
    home = domain_of(world, source.node)
    for node, probe in sorted(quarantined(world, plan.arena).items()):
        if domain_of(world, node) == home and node in plan.sealed:
            why = probe.problem.message if probe.problem is not None else "no reason was given"
            words.append(f"{node} is quarantined after {_tries(probe.failures)} tries to read from it: {why}")
    return source.reason, "; ".join(words)


def _tries(failures: int) -> str:
    """Coarse, so that a status is not written for every try."""
    return f"{failures}" if failures < 4 else f"{1 << (failures.bit_length() - 1)} or more"


def _why_none(plan: ArenaPlan, domain: str, world: World) -> tuple[NoSourceReason, str]:
    nobody = "no node holds it"
    if domain in plan.apart:
        nobody = "no node of the domain holds it, and with transfer.domainPolicy: RequireSame none of another feeds it"
    plan = plan.within(domain)
    if plan.source is None:
        if plan.image_on is not None:
            return "LoadingImage", f"{nobody}; {plan.image_on} loads it from the image on its disk"
        if plan.seed is None:
            return "NothingResident", f"{nobody}; no pod {'there ' if domain in plan.apart else ''}can load it yet"
        what = f"pod {plan.seed.name} on {plan.seed.node}"
        if domain_of(world, plan.seed.node or "") == domain:
            return "Seeding", f"{nobody}; {what} loads it"
        return "WaitingForSeed", f"{nobody}; {what}, of another domain, loads it, and then it crosses over once"
    crossing = {
        (child, parent)
        for edges in plan.lanes
        for child, parent in edges.items()
        if domain_of(world, child) == domain and domain_of(world, parent) != domain
    }
    if not crossing:
        return "NoneInReach", "no node of the domain holds it, and none of another domain feeds it"
    ways = ", ".join(f"{child} from {parent}" for child, parent in sorted(crossing))
    return "FedAcrossDomains", f"no node of the domain holds it; it crosses over once: {ways}"
