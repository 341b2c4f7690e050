"""Who feeds whom now: the plan beside what the nodes say of themselves, as one document per ModelReplica. Pure.

What a node says counts; the plan fills in where it has said nothing yet, and is named where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from flashboot_agent.core.lanes import lane_bounds, lane_count
from flashboot_agent.wire.observed import ObservedProbe
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_operator.api.live import Edge, ElectedSource, LaneTree, Member, RankTrees, Trees
from flashboot_operator.core.facts import Agent, World, domain_of
from flashboot_operator.core.fanout.pace import Sample
from flashboot_operator.core.plan import ArenaPlan, Owner
from flashboot_operator.core.quarantine import quarantined
from flashboot_operator.core.targets import lanes_of

RATE_S = 2.0
"""The rate that people are shown is of this long."""


def trees_of(owner: Owner, world: World, plans: Sequence[ArenaPlan], *, epoch: int, rank: str | None = None) -> Trees:
    """`rank`: of this rank alone, as in `tp1`."""
    ranks = [_rank(plan, world) for plan in plans if rank in (None, str(plan.place))]
    return Trees(namespace=owner.namespace, name=owner.name, epoch=epoch, at=world.now, ranks=ranks)


def rate_of(samples: Sequence[Sample]) -> int | None:
    """Bytes a second over the last seconds; None when there is no telling."""
    recent = [s for s in samples if samples[-1].at - s.at <= RATE_S]
    if len(recent) < 2 or recent[-1].at <= recent[0].at:
        return None
    return max(0, int((recent[-1].watermark - recent[0].watermark) / (recent[-1].at - recent[0].at)))


def _rank(plan: ArenaPlan, world: World) -> RankTrees:
    held = {node: a for node, agent in sorted(world.agents.items()) if (a := agent.arena(plan.arena)) is not None}
    size = max((a.bytes for a in held.values()), default=0)
    pods: dict[str, list[str]] = {}
    for pod in plan.pods:
        pods.setdefault(pod.node or "", []).append(pod.name)
    planned = {child for edges in plan.lanes for child in edges}
    blamed = _blamed(plan.arena, world)
    sources = {source.node for source in plan.sources.values()}
    members = [
        _member(plan, world, node, mine=held.get(node), pods=pods.get(node, []), blame=blamed.get(node, []))
        for node in sorted({*held, *pods, *planned} - {""}, key=lambda n: (n not in sources, n))
    ]
    return RankTrees(
        arena=plan.arena,
        rank=str(plan.place),
        bytes=size,
        sources=[ElectedSource(domain=d, node=s.node, reason=s.reason) for d, s in plan.sources.items()],
        seed_pod=plan.seed.name if plan.seed else None,
        seed_node=plan.seed.node if plan.seed else None,
        members=members,
        lanes=_lanes(plan, held, size),
    )


def _blamed(arena: str, world: World) -> dict[str, list[str]]:
    """Node → what its children hold against it now."""
    found: dict[str, list[str]] = {}
    for child, agent in sorted(world.agents.items()):
        for named, parent in sorted(agent.accused):
            if named == arena:
                found.setdefault(parent, []).append(f"{child} left it: {_why(agent, arena, parent)}")
    return found


def _why(agent: Agent, arena: str, parent: str) -> str:
    mine = agent.arena(arena)
    said = [a for a in mine.accusations if a.node == parent] if mine else []
    return said[-1].problem.message if said else "no reason given"


def _member(
    plan: ArenaPlan, world: World, node: str, *, mine: ObservedArena | None, pods: list[str], blame: list[str]
) -> Member:
    agent = world.agents.get(node)
    bad = quarantined(world, plan.arena).get(node)
    notes = [*([f"could not be read {bad.failures} times in a row: {_said(bad)}"] if bad else []), *blame]
    if agent is None or not agent.fresh:
        notes.append("its agent does not answer")
    if mine is not None and mine.problem is not None and mine.state != "sealed":
        notes.append(mine.problem.message)
    return Member(
        node=node,
        domain=domain_of(world, node),
        state="source" if any(s.node == node for s in plan.sources.values()) else _state(mine),
        pods=pods,
        watermark=mine.watermark if mine else 0,
        bytes_per_second=rate_of(agent.samples.get(plan.arena, ())) if agent and mine else None,
        since=(mine.sealed_at or mine.started_at or mine.created_at) if mine else None,
        transport=mine.transport if mine else None,
        transport_reason=mine.transport_reason if mine else None,
        slow=node in plan.slow,
        quarantined=bad is not None,
        notes=notes,
    )


def _said(probe: ObservedProbe) -> str:
    return probe.problem.message if probe.problem else "no reason given"


def _state(mine: ObservedArena | None) -> Literal["sealed", "updating", "seeding", "filling", "waiting"]:
    return "waiting" if mine is None or mine.state == "allocated" else mine.state


def _lanes(plan: ArenaPlan, held: Mapping[str, ObservedArena], size: int) -> list[LaneTree]:
    """As many as the plan has, or as those that fill had when the plan is over."""
    clones = {node: a for node, a in held.items() if a.way == "clone"}
    number = len(plan.lanes) or max((len(lanes_of(a)) for a in clones.values()), default=0)
    trees = []
    bounds = lane_bounds(size, lane_count(size, number)) if size and number else []
    for lane, (start, end) in enumerate(bounds):
        told = plan.lanes[lane] if lane < len(plan.lanes) else {}
        edges = {node: edge for node in sorted({*clones, *told}) if (edge := _edge(told, clones, node, lane))}
        trees.append(LaneTree(bytes=end - start, edges=edges))
    return trees


def _edge(told: Mapping[str, str], clones: Mapping[str, ObservedArena], node: str, lane: int) -> Edge | None:
    """None for a clone that has no say about this lane: it is complete, and has forgotten from whom it came."""
    mine, wanted = clones.get(node), told.get(node)
    lanes = lanes_of(mine) if mine else ()
    seen = lanes[lane] if lane < len(lanes) else None
    if wanted is None and mine is not None and mine.state == "sealed" and (seen is None or seen.parent is None):
        return None
    parent = (seen.parent if seen else None) or wanted
    return Edge(
        parent=parent,
        planned=wanted if wanted not in (None, parent) else None,
        watermark=seen.watermark if seen else 0,
        starved=bool(seen and seen.starved),
    )
