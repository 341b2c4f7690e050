"""Events about who feeds others and who loads: elections, tries to read from sources, agents that began anew."""

from __future__ import annotations

from flashboot_operator.core.domains import WORDS
from flashboot_operator.core.facts import Agent, World
from flashboot_operator.core.note import RECENT, Note
from flashboot_operator.core.plan import ArenaPlan
from flashboot_operator.core.quarantine import FAILURES, words_of

AT_RISK = frozenset({"SourceDraining", "SourceNodeNotReady"})
"""Of the reasons of a source that is not sound those that no other Event tells of."""


def source_notes(plan: ArenaPlan, world: World) -> list[Note]:
    restarts = [note for _, agent in sorted(world.agents.items()) for note in _restarts(plan, agent)]
    return [*_elections(plan), *_tries(plan, world), *restarts]


def _elections(plan: ArenaPlan) -> list[Note]:
    notes = _loads(plan, "no node holds an arena of its identity")
    for domain in plan.apart:
        why = f"no node of domain {domain} holds an arena of its identity, and transfer.domainPolicy is RequireSame"
        notes += _loads(plan.within(domain), why)
    if plan.source is not None:
        lasting = f"{plan.arena}|{plan.sealed[plan.source.node].sealed_at}"
        for node in plan.copies:
            text = f"{node} clones rank {plan.place} ahead: each node that holds it is being drained"
            notes.append(Note("Normal", "CopyAhead", "Elect", text, f"{lasting}|{node}"))
    for domain, source in plan.sources.items():
        sealed_at = plan.sealed[source.node].sealed_at
        where = f"the arena of rank {plan.place} on {source.node} feeds new replicas"
        text = f"{where} of domain {domain}: {source.reason}, {WORDS[source.reason]}"
        subject = f"{plan.arena}|{source.node}|{sealed_at}"
        notes.append(Note("Normal", "SourceElected", "Elect", text, subject))
        if source.reason in AT_RISK:
            notes.append(Note("Warning", "SourceAtRisk", "Elect", text, f"{subject}|{source.reason}"))
    return notes


def _loads(plan: ArenaPlan, why: str) -> list[Note]:
    if plan.image_on is not None:
        text = f"{plan.image_on} loads rank {plan.place} from the image on its disk: {why}"
        return [Note("Normal", "ImageElected", "Elect", text, f"{plan.arena}|{plan.image_on}")]
    if plan.seed is not None:
        text = f"pod {plan.seed.name} on {plan.seed.node} loads the checkpoint: {why}"
        return [Note("Normal", "SeedElected", "Elect", text, f"{plan.expected}|{plan.seed.uid}")]
    return []


def _tries(plan: ArenaPlan, world: World) -> list[Note]:
    """Of the tries to read from sources: who was quarantined, and who is read from again."""
    notes = []
    for node, probe in sorted(words_of(world, plan.arena).items()):
        where = f"rank {plan.place} on {node}"
        if probe.failures >= FAILURES and probe.problem is not None:
            text = f"{where} says that it is complete, and a chunk of it could not be read: {probe.problem.message}"
            subject = f"{plan.arena}|{node}|{probe.failing_since}"
            notes.append(Note("Warning", "SourceQuarantined", "Probe", text, subject))
        elif not probe.failures and probe.recovered_at is not None and world.now - probe.recovered_at < RECENT:
            text = f"{where} can be read from again, and may feed others"
            notes.append(Note("Normal", "QuarantineLifted", "Probe", text, f"{plan.arena}|{node}|{probe.recovered_at}"))
    return notes


def _restarts(plan: ArenaPlan, agent: Agent) -> list[Note]:
    restart = agent.restart
    if restart is None:
        return []
    subject = f"{plan.arena}|{agent.node}|{restart.instance}"
    where = f"the agent on {agent.node} began anew"
    if plan.arena in restart.kept:
        text = f"{where} and holds rank {plan.place} as before: nothing is loaded or cloned again"
        return [Note("Normal", "AgentRestarted", "Observe", text, subject)]
    if plan.arena in restart.lost:
        text = f"{where} without rank {plan.place}, which it held before; it comes again by a clone or from its image"
        return [Note("Warning", "ArenaLost", "Observe", text, subject)]
    return []
