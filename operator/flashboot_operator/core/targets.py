"""From what agents say to the facts of one arena's fan-out, and from its plan to what a node is told per lane.

An agent that says nothing of lanes has one, with the arena's watermark and parent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from flashboot_agent.core.lanes import lane_bounds
from flashboot_agent.wire.arena import Peer
from flashboot_agent.wire.observed_arena import ObservedArena, ObservedLane
from flashboot_operator.core.election import Sealed
from flashboot_operator.core.facts import NO_DOMAIN, Agent, Pod, World, domain_of
from flashboot_operator.core.fanout.fallbacks import fallbacks
from flashboot_operator.core.fanout.forest import Forest
from flashboot_operator.core.fanout.lanes import MAX_SOURCES, how_many, lanes_per_root
from flashboot_operator.core.fanout.model import DomainPolicy, Facts, Member
from flashboot_operator.core.fanout.pace import Sample
from flashboot_operator.core.fanout.plan import grown

START_DEADLINE_S = 15.0
"""Who has known a parent for so long and has no memory yet must not hold a slot. By our clock alone: a node's may
differ."""


def fan_out(
    world: World,
    first: ObservedArena,
    *,
    pods: Mapping[str, Sequence[Pod]],
    held: Mapping[str, ObservedArena],
    twins: Sequence[Sealed],
    slow: Collection[str],
    accused: frozenset[tuple[str, str]],
    policy: DomainPolicy,
    percent: int | None,
) -> Forest:
    """The plan of one arena.

    first: the source's sealed arena. pods: node → live pods that need the arena, none where a copy is wanted all the
    same. held: node → what its agent has of it.
    twins: sealed nodes that answer, in the order in which they shall be sources. percent: egress cap of those that
    serve, None for none.
    """
    domains = {node.name: node.domain for node in world.nodes.values()}
    starting = pods.keys() - held.keys()
    near = _by_domain(twins, policy)
    strangers = _strangers(starting, near, domains) if policy == "PreferSame" else {}
    to_feed = {domains.get(node, NO_DOMAIN) if policy != "Any" else "" for node in starting} if not strangers else near
    capped = [mine for domain, mine in near.items() if domain in to_feed and mine[0].engines]
    lanes = how_many(
        first.bytes,
        filling=[len(lanes_of(a)) for a in held.values() if a.state == "filling" and a.way == "clone"],
        sources=min(max((len(mine) for mine in capped), default=1), MAX_SOURCES),
        percent=percent,
        strangers=strangers,
    )
    members = []
    for node in sorted(pods.keys() | held.keys()):
        member = _member(world, node, pods.get(node), held.get(node), first=first, lanes=lanes, slow=node in slow)
        if member is not None:
            members.append(member)
    return grown(
        Facts(
            lanes=tuple(end - start for start, end in lane_bounds(first.bytes, lanes)),
            sources=tuple(s.node for mine in near.values() for s in mine[: min(lanes, MAX_SOURCES)]),
            roots=tuple(s.node for s in twins),
            members=tuple(members),
            accused=accused,
            domains=domains,
            policy=policy,
            lanes_per_root=lanes_per_root(lanes, percent),
            serving=frozenset(s.node for s in twins if s.engines),
            avoid=frozenset(s.node for s in twins if not s.sound),
        )
    )


def lanes_of(arena: ObservedArena) -> Sequence[ObservedLane]:
    return arena.lanes or [ObservedLane(watermark=arena.watermark, parent=arena.parent)]


def sample_of(arena: ObservedArena, at: float) -> Sample:
    """What pace.py looks at. `at`: monotonic seconds."""
    lanes = lanes_of(arena)
    return Sample(at, arena.watermark, tuple(lane.parent for lane in lanes), any(lane.starved for lane in lanes))


def pace_of(world: World, held: Mapping[str, ObservedArena]) -> dict[str, tuple[Sample, ...]]:
    """The last seconds of each node that answers and fills its arena of `held`. Of a gateway at work nothing is said:
    the way between domains is slow by nature."""
    found = {}
    for node, arena in held.items():
        agent = world.agents[node]
        if arena.state == "filling" and agent.fresh:
            home, parents = domain_of(world, node), [lane.parent for lane in lanes_of(arena)]
            near = all(p is None or domain_of(world, p) == home for p in parents)
            found[node] = agent.samples.get(arena.arena, ()) if near else ()
    return found


def allowed_of(
    links: Mapping[str, int | None],
    nodes: Iterable[str],
    held: Mapping[str, ObservedArena],
    caps: Mapping[str, int],
) -> dict[str, float]:
    """Of each of the nodes, bytes a second that its link and its parents' `caps` let it have, where links are known."""
    found = {}
    for node in nodes:
        parents = {lane.parent for lane in lanes_of(held[node]) if lane.parent is not None}
        sent = [caps.get(p) or links.get(p) for p in parents]
        mine, known = links[node], [rate for rate in sent if rate is not None]
        if mine is not None and known and len(known) == len(sent):
            found[node] = float(min(mine, sum(known)))
    return found


def peers(world: World, forest: Forest, node: str) -> list[list[Peer]]:
    """Per lane: the parent, then whom to try by oneself when it fails."""
    return [
        [Peer(node=n, address=world.agents[n].observed.chunk_address) for n in fallbacks(forest, lane, node)]
        for lane in forest.lanes
    ]


def _by_domain(twins: Sequence[Sealed], policy: DomainPolicy) -> dict[str, list[Sealed]]:
    """Domain → its sealed nodes, sound ones only where there are any; all are in one where domains don't matter."""
    found: dict[str, list[Sealed]] = {}
    for each in twins:
        found.setdefault("" if policy == "Any" else each.domain, []).append(each)
    return {domain: [each for each in mine if each.sound] or mine[:1] for domain, mine in found.items()}


def _strangers(targets: Iterable[str], homes: Collection[str], domains: Mapping[str, str]) -> dict[str, int]:
    """Domains without a sealed node → their targets. `homes`: those that have one."""
    found: dict[str, int] = {}
    for node in targets:
        if (domain := domains.get(node)) is not None and domain not in homes:
            found[domain] = found.get(domain, 0) + 1
    return found


def _member(
    world: World,
    node: str,
    there: Sequence[Pod] | None,
    mine: ObservedArena | None,
    *,
    first: ObservedArena,
    lanes: int,
    slow: bool,
) -> Member | None:
    """The node as a target that can start now, or as one that has gone; None when it is neither. `there`: its pods;
    None: it needs nothing."""
    agent = world.agents.get(node)
    if agent is None or (mine is not None and mine.state in ("sealed", "updating", "seeding")):
        return None
    seen = [o for p in there or () if (o := agent.pod(p.uid)) is not None]
    if mine is None and not seen and (there is None or there):
        return None
    arrival = min([o.published_at for o in seen], default=mine.created_at if mine else world.now)
    problem = any(o.problem is not None for o in seen) or (mine is not None and mine.problem is not None)
    blank = mine is None or mine.bytes == 0  # It has no memory yet, and does not know how much it needs.
    late = blank and agent.ordered_s.get(first.arena, 0.0) > START_DEADLINE_S
    alike = mine is not None and not blank and len(lanes_of(mine)) == lanes
    return Member(
        node=node,
        arrival=arrival.timestamp(),
        watermarks=tuple(lane.watermark for lane in lanes_of(mine)) if mine and alike else (0,) * lanes,
        parents=_parents(agent, mine, first.arena, lanes),
        serving=not blank,
        stuck=blank and (problem or late),
        slow=slow,
        gone=not agent.fresh or there is None,
        other_lanes=not blank and not alike,
    )


def _parents(agent: Agent, mine: ObservedArena | None, arena: str, lanes: int) -> tuple[str | None, ...]:
    """Per lane whom it was told; where the agent works on our last word, what it says is what is."""
    told: list[str | None] = [*agent.put_parents.get(arena, ()), *([None] * lanes)][:lanes]
    if mine is not None and agent.observed.revision >= agent.put_revision:
        for lane, seen in enumerate(lanes_of(mine)[:lanes]):
            told[lane] = seen.parent or told[lane]
    return tuple(told)
