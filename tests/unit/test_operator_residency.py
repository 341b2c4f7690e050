"""Copies without pods: which nodes keep them, until when, which may go, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent.wire.observed_arena import Evicted
from flashboot_operator.core.events import happened
from flashboot_operator.core.facts import Node, World
from flashboot_operator.core.plan import Memory, Owner, memory_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.residency import unused_since
from flashboot_operator.core.status import compute_status
from tests.unit.operatorkit import NOW, SIZE, agent, arena, owner, pod, seen, world

NAMES = ("n1", "n2", "n3", "n4")


def asks(copies: int, ttl: int = 60, **more: Any) -> Owner:
    return owner(residency={"hostCopies": copies, "hostTTLSeconds": ttl}, **more)


def holders(names: tuple[str, ...] = NAMES, **more: Any) -> World:
    return world([], [agent(name, arenas=[arena()]) for name in names], **more)


def kept(owner_: Owner, world_: World) -> dict[str, str]:
    """Node → how firmly, of the nodes that are told to hold without a pod."""
    plans = plan_replica(owner_, world_, Memory())
    return {
        node: w.eviction for plan in plans for node, w in sorted(plan.wanted.items()) if w.role == "hold" and not w.pods
    }


def told(owner_: Owner, world_: World, before: dict[str, Any] | None = None) -> dict[str, Any]:
    plans = plan_replica(owner_, world_, Memory())
    made = compute_status(owner_, world_, plans, generation=1, before=before or {}, refused=None)
    return made.model_dump(by_alias=True, exclude_none=True, mode="json")


def condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    found = next(c for c in status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"], found["message"]


def after(seconds: int, world_: World) -> World:
    return replace(world_, unused_since=NOW - timedelta(seconds=seconds))


def test_without_replicas_the_copies_asked_for_stay_and_one_of_them_is_the_last_to_go() -> None:
    assert kept(asks(2, replicas=0), after(59, holders())) == {"n1": "last", "n2": "spare"}
    assert kept(asks(1, replicas=0), after(59, holders())) == {"n1": "last"}
    assert kept(asks(9, replicas=0), after(59, holders(("n1",)))) == {"n1": "last"}
    assert kept(asks(2, replicas=0), after(60, holders())) == {}, "the time is over"
    assert kept(asks(0, replicas=0), after(0, holders())) == {}
    assert kept(asks(2, 0, replicas=0), after(0, holders())) == {}


def test_while_replicas_are_wanted_there_is_no_end_and_the_only_source_never_goes() -> None:
    assert kept(asks(2), holders()) == {"n1": "never", "n2": "spare"}
    assert kept(asks(0), holders()) == {"n1": "never"}


def test_nodes_with_pods_count_first_and_make_an_idle_source_dispensable() -> None:
    there = holders()
    serving = agent("n3", arenas=[arena()], pods=[seen("p", "attached")])
    one = world([pod("p", "n3")], [*there.agents.values(), serving])
    assert kept(asks(0), one) == {"n1": "spare"}, "the source is an idle one, as ever; another node has it, too"
    assert kept(asks(2), one) == {"n1": "spare"}
    assert kept(asks(3), one) == {"n1": "spare", "n2": "spare"}
    mute = replace(one, agents={**one.agents, "n3": replace(serving, fresh=False, silent_s=9)})
    assert kept(asks(3), mute)["n1"] == "never", "whether n3 has it still, nobody knows"


def test_copies_are_spread_over_domains_and_not_left_on_nodes_that_go() -> None:
    nodes = {"n1": Node("n1", domain="a"), "n2": Node("n2", domain="a"), "n3": Node("n3", domain="b")}
    there = after(1, holders(("n1", "n2", "n3"), nodes=nodes))
    assert kept(asks(2, replicas=0), there).keys() == {"n1", "n3"}
    cordoned = {**nodes, "n1": Node("n1", domain="a", cordoned=True)}
    assert kept(asks(2, replicas=0), replace(there, nodes=cordoned)).keys() == {"n2", "n3"}
    assert kept(asks(3, replicas=0), replace(there, nodes=cordoned)).keys() == {"n1", "n2", "n3"}


@settings(deadline=None)
@given(st.sets(st.sampled_from([f"n{i}" for i in range(12)]), min_size=1), st.integers(1, 6), st.randoms())
def test_the_choice_depends_on_no_order_and_confirms_itself(names: set[str], copies: int, random: Any) -> None:
    shuffled = sorted(names)
    random.shuffle(shuffled)
    nodes = {name: Node(name, domain=f"d{sum(name.encode()) % 3}") for name in shuffled}
    there = after(1, holders(tuple(shuffled), nodes=nodes))
    chosen = kept(asks(copies, replicas=0), there)
    assert len(chosen) == min(copies, len(names))
    left = after(1, holders(tuple(chosen), nodes=nodes))
    assert kept(asks(copies, replicas=0), left) == chosen


@given(order=st.permutations(NAMES), copies=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_pods_that_go_one_after_another_leave_copies_that_nobody_was_told_to_drop(
    order: list[str], copies: int
) -> None:
    """Looks come faster than nodes say what they have dropped."""
    agents = [agent(name, arenas=[arena()], pods=[seen(f"p{name}", "attached")]) for name in NAMES]
    memory, wanted = Memory(), set(NAMES)
    for number in range(len(order) + 1):
        there = world([pod(f"p{name}", name) for name in order[number:]], agents, unused_since=NOW)
        plans = plan_replica(asks(copies, replicas=0), there, memory)
        memory = memory_of(plans)
        now = {node for plan in plans for node in plan.wanted}
        assert now <= wanted
        assert len(now) >= copies
        wanted = now


def test_since_when_there_is_no_pod_is_what_the_status_says() -> None:
    said = {"residency": {"unusedSince": "2026-03-01T11:59:30Z"}}
    zero = asks(1, replicas=0)
    assert unused_since(zero, [], {}, NOW) == NOW
    assert unused_since(zero, [], said, NOW) == NOW - timedelta(seconds=30), "also for an operator that just began"
    assert unused_since(zero, [pod("p", "n1")], said, NOW) is None
    assert unused_since(zero, [pod("p", None)], said, NOW) is None, "a pod on its way counts"
    assert unused_since(zero, [pod("p", "n1", going=True)], said, NOW) is not None
    assert unused_since(asks(1), [], said, NOW) is None, "replicas are wanted"
    assert unused_since(asks(1, replicas=None, template=None), [], {}, NOW) == NOW, "who adopts has pods or none"


def test_the_status_says_where_copies_are_until_when() -> None:
    status = told(asks(2, replicas=0), after(15, holders()))
    assert status["residency"] == {
        "copies": 2,
        "nodes": ["n1", "n2"],
        "unusedSince": "2026-03-01T11:59:45Z",
        "until": "2026-03-01T12:00:45Z",
    }
    text = "no replicas are wanted; n1, n2 keep the weights until 2026-03-01T12:00:45Z"
    assert condition(status, "Ready") == ("True", "ScaledToZero", text)
    assert condition(status, "Available") == ("True", "ScaledToZero", text)
    source = "what n1 holds feeds new replicas; n1, n2 keep the weights until 2026-03-01T12:00:45Z"
    assert condition(status, "SourceAvailable") == ("True", "IdleAndSealed", source)
    again = told(asks(2, replicas=0), after(15, replace(holders(), now=NOW)), status)
    assert again == status, "nothing to write while nothing changes"


def test_fewer_copies_than_wanted_and_none_left_are_told() -> None:
    one = told(asks(3, replicas=0), after(15, holders(("n1",))))
    assert condition(one, "Ready")[2].endswith("n1 keeps the weights until 2026-03-01T12:00:45Z; that is 1 of 3 copies")
    none = told(asks(3, replicas=0), after(15, holders(())), one)
    assert none["residency"]["copies"] == 0
    assert condition(none, "SourceAvailable")[:2] == ("False", "CopiesLost")
    fresh = told(asks(3, replicas=0), after(15, holders(())))
    assert condition(fresh, "SourceAvailable")[:2] == ("False", "NothingResident"), "nothing was there to be lost"


@pytest.mark.parametrize("copies", [0, 2])
def test_that_no_memory_is_held_is_told_with_the_reason(copies: int) -> None:
    had = {"weights": {"version": 0, "digest": "sha256:" + "0" * 64}}
    status = told(asks(copies, replicas=0), after(61, holders(())), had)
    text = condition(status, "Ready")[2]
    if copies:
        assert text == (
            "no replicas are wanted; no memory is held: copies stayed until 2026-03-01T11:59:59Z, 60 s after the last "
            "pod (spec.residency.hostTTLSeconds)"
        )
        assert condition(status, "SourceAvailable")[:2] == ("False", "CopiesExpired")
    else:
        assert text == "no replicas are wanted; no memory is held, since spec.residency.hostCopies is 0"
        assert condition(status, "SourceAvailable")[:2] == ("False", "NothingResident")
        assert "residency" not in status


def test_who_adopts_pods_keeps_its_source_and_more_copies_for_their_time() -> None:
    adopting = asks(2, replicas=None, template=None)
    assert kept(adopting, after(59, holders())) == {"n1": "never", "n2": "spare"}
    assert kept(adopting, after(61, holders())) == {"n1": "never"}


def test_pods_that_come_back_clone_from_a_copy() -> None:
    copies = agent("n1", arenas=[arena()])
    back = world([pod("p", "n2")], [copies, agent("n2", pods=[seen("p")])])
    plans = plan_replica(asks(1), back, Memory())
    roles = {node: w.role for plan in plans for node, w in plan.wanted.items()}
    assert roles == {"n1": "hold", "n2": "clone"}
    assert told(asks(1), back)["residency"] == {"copies": 1, "nodes": ["n1"]}, "no end any more"


def test_a_copy_that_had_to_go_is_an_event() -> None:
    gone = Evicted(**arena().owner(), bytes=SIZE, at=NOW, message="its memory was needed for rank tp0 of ns/other")
    there = world([], [replace(agent("n1"), observed=agent("n1").observed.model_copy(update={"evicted": [gone]}))])
    here = asks(1, replicas=0)
    (note,) = [n for n in happened(here, there, []) if n.reason == "CopyEvicted"]
    assert note.message == f"n1 dropped its copy of rank tp0, {SIZE} bytes: {gone.message}"
    later = replace(there, now=NOW + timedelta(hours=1))
    assert "CopyEvicted" not in {n.reason for n in happened(here, later, [])}
