"""A roll-out: one seed per identity, earlier arenas stay while they are used, and when it counts as stuck."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.observed_pod import ObservedPod
from flashboot_agent.wire.place import Place
from flashboot_operator.core.events import transitions
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import Agent, Pod, World
from flashboot_operator.core.plan import ArenaPlan, Memory, Owner
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from flashboot_operator.core.workload import TemplateRefused, deployment
from tests.unit.operatorkit import (
    ARENA,
    EXPECTED,
    HASH,
    NOW,
    OWNER_UID,
    TEMPLATE,
    agent,
    arena,
    owner,
    pod,
    seen,
    spec,
    world,
)

Status = dict[str, Any]


def next_owner(**more: Any) -> Owner:
    return owner(**({"model": {"name": "org/m", "revision": "r2"}, "replicas": 2} | more))


NEW = next_owner().template_hash or ""
NEW_EXPECTED = expected_identity(next_owner().spec, template_hash=NEW, gpu_product="cpu", architecture="amd64")
NEW_ARENA = arena_id(OWNER_UID, NEW_EXPECTED, Place())


def asked(name: str, identity: str) -> ObservedPod:
    said = seen(name, "connected")
    ranks = [rank.model_copy(update={"identity": identity, "hello_at": NOW}) for rank in said.ranks]
    return said.model_copy(update={"ranks": ranks})


def earlier(count: int) -> tuple[list[Pod], list[Agent]]:
    """Replicas of r1 that serve."""
    pods = [pod(f"old{i}", f"o{i}", at=i, ready=True, ready_at=NOW) for i in range(count)]
    return pods, [agent(f"o{i}", pods=[seen(f"old{i}", "attached")], arenas=[arena()]) for i in range(count)]


def rolling(new: int, *, old: int = 2, **more: Any) -> World:
    """`new` pods of r2 beside `old` of r1; their engines have asked for r2."""
    pods, agents = earlier(old)
    pods += [pod(f"new{i}", f"n{i}", at=60 + i, hash=NEW, **more) for i in range(new)]
    agents += [agent(f"n{i}", pods=[asked(f"new{i}", "sha256:" + "2" * 64)]) for i in range(new)]
    return world(pods, agents)


def plans(who: Owner, facts: World) -> dict[str, ArenaPlan]:
    return {plan.expected: plan for plan in plan_replica(who, facts, Memory())}


def test_of_several_new_replicas_exactly_one_seeds() -> None:
    made = plans(next_owner(), rolling(3))
    roles = {node: wanted.role for node, wanted in made[NEW_EXPECTED].wanted.items()}
    seeds = {wanted.seed_pod for wanted in made[NEW_EXPECTED].wanted.values() if wanted.role == "seed"}
    assert made[NEW_EXPECTED].seed is not None
    assert len(seeds) == 1, roles
    assert roles.keys() == {"n0", "n1", "n2"}
    assert sorted(roles.values()) == ["clone", "clone", "seed"]


def test_who_never_asks_keeps_nobody_waiting() -> None:
    """new0's image cannot be pulled on its node."""
    facts = rolling(2)
    mute = agent("n0", pods=[seen("new0")])
    made = plans(next_owner(), replace(facts, agents={**facts.agents, "n0": mute}))
    seed = made[NEW_EXPECTED].seed
    assert seed is not None
    assert seed.name == "new1"


def test_earlier_pods_keep_their_arenas_though_the_spec_names_another_revision() -> None:
    made = plans(next_owner(), rolling(1))
    assert {p.name for p in made[EXPECTED].pods} == {"old0", "old1"}
    assert {node: w.arena for node, w in made[EXPECTED].wanted.items()} == {"o0": ARENA, "o1": ARENA}
    assert made[NEW_EXPECTED].arena == NEW_ARENA != ARENA


def test_earlier_arenas_go_with_the_last_pod() -> None:
    facts = rolling(1, old=1)
    gone = replace(facts, pods=tuple(p for p in facts.pods if p.name != "old0"))
    assert EXPECTED in plans(next_owner(), facts)
    assert EXPECTED not in plans(next_owner(), gone)


def test_back_again_clones_from_what_still_runs() -> None:
    facts = rolling(1, old=1)
    back = pod("back", "b0", at=90)
    back_agent = agent("b0", pods=[seen("back")])
    both = world([*facts.pods, back], [*facts.agents.values(), back_agent])
    plan = plans(owner(replicas=2), both)[EXPECTED]
    assert plan.seed is None
    assert plan.wanted["b0"].role == "clone"
    assert [peer.node for peer in plan.wanted["b0"].lanes[0].parents] == ["o0"]


def test_the_revision_is_part_of_the_template_and_of_its_hash() -> None:
    meta = {"name": "m", "namespace": "ns", "uid": "u"}
    one, two = deployment(meta, spec()), deployment(meta, next_owner().spec)
    assert NEW != HASH
    assert one["spec"]["template"]["spec"] != two["spec"]["template"]["spec"], "else no pod would be replaced"
    assert deployment(meta, spec()) == one, "back is the very same template"


def test_the_engines_own_revision_must_agree() -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["args"] = ["--revision=r1"]
    meta = {"name": "m", "namespace": "ns", "uid": "u"}
    deployment(meta, spec(template=template))
    with pytest.raises(TemplateRefused, match=r"--revision r1, and spec.model.revision is r2.*Change them together"):
        deployment(meta, next_owner(template=template).spec)


# The deadline


def look(who: Owner, facts: World, before: Status | None = None, *, generation: int = 2) -> Status:
    made = compute_status(
        who, facts, plan_replica(who, facts, Memory()), generation=generation, before=before or {}, refused=None
    )
    return made.model_dump(by_alias=True, exclude_none=True, mode="json")


def condition(status: Status, kind: str) -> dict[str, Any]:
    return next((c for c in status["conditions"] if c["type"] == kind), {})


def at(facts: World, now: datetime) -> World:
    return replace(facts, now=now)


LIMIT = timedelta(seconds=900)
START = NOW - timedelta(minutes=4)
"""When the new pods of `rolling` were made."""


def stuck(facts: World | None = None) -> Status:
    facts = facts or rolling(1)
    first = look(next_owner(), at(facts, START))
    later = look(next_owner(), at(facts, START + LIMIT), first)
    assert condition(later, "Reconciling")["reason"] == "RollingOut"
    return look(next_owner(), at(facts, START + LIMIT + timedelta(seconds=2)), later)


def test_a_roll_out_that_does_not_move_stalls_and_says_what_to_do() -> None:
    stalled = condition(stuck(), "Stalled")
    assert stalled["reason"] == "ProgressDeadlineExceeded"
    assert "900 s" in stalled["message"]
    assert "2 of the earlier one serve, and no more of them are taken away" in stalled["message"]
    assert "put the earlier ones back" in stalled["message"]
    assert "pod new0: rank tp0 on n0" in stalled["message"], "what holds it up"
    ready, degraded = condition(stuck(), "Ready"), condition(stuck(), "Degraded")
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", stalled["reason"], stalled["message"])
    assert (degraded["status"], degraded["message"].rsplit("; ", 1)[1]) == ("False", "see Stalled")
    assert not condition(stuck(), "Reconciling")


def test_it_stays_stalled_until_something_moves() -> None:
    before, now = stuck(), START + LIMIT * 3
    assert condition(look(next_owner(), at(rolling(1), now), before), "Stalled")
    *others, last = rolling(1).pods
    fresh = replace(last, created=now - timedelta(seconds=1))
    again = look(next_owner(), replace(at(rolling(1), now), pods=(*others, fresh)), before)
    assert condition(again, "Reconciling")["reason"] == "RollingOut"
    assert not condition(again, "Stalled")


def test_a_replica_that_becomes_ready_gives_the_next_one_the_whole_time() -> None:
    first = look(next_owner(), at(rolling(1), START))
    moved = rolling(1, ready_at=START + LIMIT - timedelta(seconds=10))
    later = look(next_owner(), at(moved, START + LIMIT + timedelta(seconds=2)), first)
    assert condition(later, "Reconciling")
    assert not condition(later, "Stalled")


@pytest.mark.parametrize("before", [stuck, lambda: look(next_owner(), at(rolling(1), START))])
def test_another_spec_starts_the_clock_anew(before: Callable[[], Status]) -> None:
    now = START + LIMIT * 3
    again = look(next_owner(), at(rolling(1), now), before(), generation=3)
    assert condition(again, "Reconciling")["lastTransitionTime"] == "2026-03-01T12:41:00Z"
    assert not condition(again, "Stalled")


def test_put_back_it_is_ready_at_once() -> None:
    facts = world(*earlier(2))
    again = look(owner(replicas=2), at(facts, START + LIMIT * 3), stuck(), generation=3)
    assert condition(again, "Ready")["reason"] == "AllReplicasReady"
    assert not condition(again, "Stalled")
    assert not condition(again, "Reconciling")


def test_groups_have_the_deadline_too_and_count_as_wholes() -> None:
    """Their agents are silent: who is Ready is Ready."""
    who = next_owner(group={"size": 2}, parallelism={"tensor": 2}, replicas=1)
    old = [pod(f"m-0-{i}", f"o{i}", replica="m-0", index=i, ready=True, ready_at=START) for i in range(2)]
    new = [pod(f"m-1-{i}", f"n{i}", at=60, replica="m-1", index=i, hash=who.template_hash) for i in range(2)]
    facts = world([*old, *new], [])
    first = look(who, at(facts, START))
    assert condition(first, "Reconciling")["message"].endswith("roll-out: 1 of 2 are of the present template")
    later = look(who, at(facts, START + LIMIT + timedelta(seconds=1)), first)
    assert "1 of the earlier one serve, and no more of them are taken away" in condition(later, "Stalled")["message"]


def test_adopted_pods_have_the_deadline_too() -> None:
    who = owner(replicas=None, template=None)
    facts = world([pod("p0", "n0")], [agent("n0", pods=[seen("p0")])])
    first = look(who, at(facts, NOW))
    later = look(who, at(facts, NOW + LIMIT + timedelta(seconds=1)), first)
    assert condition(later, "Stalled")["message"].startswith("no replica became Ready for 900 s: 0 of 1")


def test_the_events_of_a_roll_out() -> None:
    facts, reasons = rolling(1), []
    before: Status = {"conditions": []}
    for seconds in (0, 1, 902, 903):
        moment = at(facts, START + timedelta(seconds=seconds))
        made = compute_status(
            next_owner(),
            moment,
            plan_replica(next_owner(), moment, Memory()),
            generation=2,
            before=before,
            refused=None,
        )
        reasons += [note.reason for note in transitions(made.conditions or [], before["conditions"])]
        before = made.model_dump(by_alias=True, exclude_none=True, mode="json")
    assert reasons == ["RolloutStarted", "ProgressDeadlineExceeded"]
