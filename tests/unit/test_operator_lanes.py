"""Lanes as the operator gives them: how many, from which source, how large a request, under which cap."""

from __future__ import annotations

from typing import Any

from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_arena import ObservedArena, ObservedLane
from flashboot_operator.core.facts import Agent, Node
from flashboot_operator.core.fanout.pace import Sample
from flashboot_operator.core.plan import ArenaPlan, Memory, Owner
from flashboot_operator.core.progress import line_of
from flashboot_operator.core.replica import plan_replica
from tests.unit.operatorkit import ARENA, agent, arena, owner, pod, seen, world

MIB = 1 << 20
SIZE = 64 * MIB
LINK = 100 * MIB
NOTHING = Memory()


def fast(node: str, link: int | None = LINK, **more: Any) -> Agent:
    made = agent(node, **more)
    observed = made.observed.model_copy(update={"link_bytes_per_second": link})
    return Agent(node, observed, samples=made.samples)


def serving(node: str, *, link: int | None = LINK) -> Agent:
    """A source whose engine serves."""
    held = arena(bytes=SIZE, watermark=SIZE)
    return fast(node, link, pods=[seen(f"p-{node}", "attached")], arenas=[held])


def filling(*lanes: tuple[int, str | None], **more: Any) -> ObservedArena:
    said = [ObservedLane(watermark=mark, parent=parent) for mark, parent in lanes]
    total = sum(mark for mark, _ in lanes)
    return arena("filling", bytes=SIZE, watermark=total, lanes=said, parent=lanes[0][1], **more)


def look(agents: list[Agent], owner_: Owner | None = None, memory: Memory = NOTHING, **more: Any) -> ArenaPlan:
    pods = [pod(f"p-{a.node}", a.node, at=i) for i, a in enumerate(agents)]
    [made] = plan_replica(owner_ or owner(), world(pods, agents, **more), memory)
    return made


def first(wanted: WantedArena) -> list[str | None]:
    """The parent in each lane."""
    return [lane.parents[0].node if lane.parents else None for lane in wanted.lanes]


def test_one_source_means_one_lane_and_its_cap_is_told() -> None:
    plan = look([serving("s0"), fast("n1", pods=[seen("p-n1")])])
    assert first(plan.wanted["n1"]) == ["s0"]
    assert plan.wanted["s0"].egress_bytes_per_second == LINK // 2, "half of the link, the default of the API"
    assert plan.wanted["n1"].egress_bytes_per_second is None
    assert plan.wanted["n1"].request_bytes == 1 << 20, "200 µs of this link are 20 KiB, and bytes go on by the chunk"


def test_two_capped_sources_give_two_lanes_one_each() -> None:
    plan = look([serving("s0"), serving("s1"), fast("n2", pods=[seen("p-n2")])])
    assert first(plan.wanted["n2"]) == ["s0", "s1"]
    assert {w.egress_bytes_per_second for n, w in plan.wanted.items() if n != "n2"} == {LINK // 2}


def test_no_cap_or_no_known_link_means_one_lane() -> None:
    nodes = [serving("s0"), serving("s1"), fast("n2", pods=[seen("p-n2")])]
    assert len(look(nodes, owner(transfer={"sourceEgressPercent": 100})).wanted["n2"].lanes) == 1
    unknown = [serving("s0", link=None), serving("s1", link=None), agent("n2", pods=[seen("p-n2")])]
    plan = look(unknown)
    assert len(plan.wanted["n2"].lanes) == 1
    assert plan.wanted["s0"].egress_bytes_per_second is None


def test_an_idle_source_is_not_capped() -> None:
    idle = fast("s0", arenas=[arena(bytes=SIZE, watermark=SIZE)])
    pods = [pod("p-n1", "n1")]
    [plan] = plan_replica(owner(), world(pods, [idle, fast("n1", pods=[seen("p-n1")])]), Memory())
    assert plan.wanted["s0"].egress_bytes_per_second is None, "there is no engine whose bandwidth it would take"


def test_the_number_of_lanes_stays_while_one_fills() -> None:
    busy = fast("n2", pods=[seen("p-n2")], arenas=[filling((5 * MIB, "s0"), (6 * MIB, "s1"))])
    plan = look([serving("s0"), busy, fast("n3", pods=[seen("p-n3")])])
    assert first(plan.wanted["n3"]) == ["n2", "n2"], "two lanes still, though a single source would mean one"
    assert plan.wanted["n2"].lanes[0].parents[0].node == "s0"
    assert first(plan.wanted["n2"])[1] == "s0", "the second source is gone, the first one takes its lane"


def test_an_agent_that_says_nothing_of_lanes_has_one() -> None:
    old = fast("n2", pods=[seen("p-n2")], arenas=[arena("filling", bytes=SIZE, watermark=9 * MIB, parent="s0")])
    plan = look([serving("s0"), old, fast("n3", pods=[seen("p-n3")])])
    assert first(plan.wanted["n3"]) == ["n2"]


def test_one_with_other_lanes_feeds_nobody_until_it_is_sealed() -> None:
    two = [
        fast(f"n{i}", pods=[seen(f"p-n{i}")], arenas=[filling((9 * MIB, "s0"), (9 * MIB, "s1"))], link=LINK)
        for i in (2, 3)
    ]
    odd = fast("n4", pods=[seen("p-n4")], arenas=[filling((20 * MIB, "s0"))])
    plan = look([serving("s0"), serving("s1"), *two, odd, fast("n5", pods=[seen("p-n5")])])
    assert "n4" not in {p for edges in plan.lanes for p in edges.values()}
    assert set(first(plan.wanted["n4"])) <= {"s0", "s1", None}


def test_targets_of_another_rack_get_a_lane_each() -> None:
    nodes = {n: Node(n, domain="b" if n.startswith("m") else "a") for n in ("s0", "m1", "m2", "m3")}
    targets = [fast(f"m{i}", pods=[seen(f"p-m{i}")]) for i in (1, 2, 3)]
    plan = look([serving("s0"), *targets], owner(transfer={"sourceEgressPercent": 100}), nodes=nodes)
    crossings = sorted((c, lane) for lane, edges in enumerate(plan.lanes) for c, p in edges.items() if p == "s0")
    assert crossings == [("m1", 0), ("m2", 1), ("m3", 2)], "each is the gateway of one lane"


def test_a_slow_parent_is_left_and_remembered() -> None:
    def samples(rate: float, parent: str) -> dict[str, tuple[Sample, ...]]:
        return {ARENA: tuple(Sample(i / 4, int(rate * i / 4), (parent,), False) for i in range(6))}

    agents = [serving("s0")]
    for i, (mark, rate) in enumerate([(20, 25.0), (5, 6.0), (5, 25.0)], start=1):
        parent = f"n{i - 1}" if i > 1 else "s0"
        made = fast(f"n{i}", pods=[seen(f"p-n{i}")], arenas=[filling((mark * MIB, parent))])
        agents.append(Agent(made.node, made.observed, samples=samples(rate * MIB, parent)))
    plan = look(agents)
    assert set(plan.slow) == {"n2"}
    assert first(plan.wanted["n3"]) == ["n1"], "it takes the place of the slow one"
    assert first(plan.wanted["n2"]) == ["n3"], "which goes to the tail, with its bytes"
    quiet = [Agent(a.node, a.observed) for a in agents]
    assert set(look(quiet, memory=Memory(slow={ARENA: plan.slow})).slow) == {"n2"}


def test_progress_names_every_parent() -> None:
    busy = fast("n2", pods=[seen("p-n2")], arenas=[filling((16 * MIB, "s0"), (16 * MIB, "s1"))])
    plan = look([serving("s0"), serving("s1"), busy])
    there = world([pod("p-n2", "n2")], [busy])
    assert line_of(pod("p-n2", "n2"), [plan], there).text == "pod p-n2: rank tp0 on n2 at 50 % from s0, s1"
