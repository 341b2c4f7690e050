"""The fan-out plan, for any facts: in each lane a forest below sealed nodes, nobody below one who has less."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_operator.core.fanout.fallbacks import fallbacks
from flashboot_operator.core.fanout.model import Facts, Member
from flashboot_operator.core.fanout.plan import grown, plan
from tests.property.fanoutkit import SIZE, any_facts, told

Edges = dict[str, str]


def root_of(node: str, edges: Edges) -> str:
    seen = {node}
    while node in edges:
        node = edges[node]
        assert node not in seen, f"a cycle through {node}: {edges}"
        seen.add(node)
    return node


def parent_in(m: Member, lane: int) -> str | None:
    return m.parents[lane]


@given(any_facts())
def test_a_forest_without_cycles(facts: Facts) -> None:
    members = {m.node: m for m in facts.members}
    for edges in plan(facts):
        for child, parent in edges.items():
            assert child in members
            assert not members[child].gone
            root_of(child, edges)
            assert parent in facts.roots or (
                members[parent].serving and not members[parent].stuck and not members[parent].gone
            )
            if members[child].other_lanes:
                assert parent in facts.roots
            if facts.policy == "RequireSame":
                assert facts.domains[child] == facts.domains[parent]


@given(any_facts())
def test_a_new_edge_has_a_root_with_the_whole_lane_and_a_parent_that_is_ahead(facts: Facts) -> None:
    members = {m.node: m for m in facts.members}
    for lane, edges in enumerate(plan(facts)):
        for child, parent in edges.items():
            if parent_in(members[child], lane) == parent:
                continue
            at = parent
            while at in edges and not (at in members and members[at].watermarks[lane] == SIZE):
                at = edges[at]
            assert at in facts.roots or members[at].watermarks[lane] == SIZE
            ahead = SIZE if parent in facts.roots else members[parent].watermarks[lane]
            assert ahead >= members[child].watermarks[lane]


@given(any_facts(fresh=True))
def test_one_child_per_node_and_lane_inside_a_domain(facts: Facts) -> None:
    members = {m.node: m for m in facts.members}
    for lane, edges in enumerate(plan(facts)):
        inside = [
            p
            for c, p in edges.items()
            if facts.policy == "Any" or facts.domains[c] == facts.domains[p]
            if members[c].watermarks[lane] < SIZE
        ]
        assert all(count == 1 for count in Counter(inside).values()), edges


@given(any_facts(fresh=True))
def test_a_gateway_crosses_for_one_lane_at_a_time_and_once_per_domain(facts: Facts) -> None:
    crossings = [
        (lane, child)
        for lane, edges in enumerate(plan(facts))
        for child, parent in edges.items()
        if facts.domains[child] != facts.domains[parent] and facts.policy != "Any"
    ]
    assert all(count == 1 for count in Counter(child for _, child in crossings).values())
    assert all(count == 1 for count in Counter((lane, facts.domains[c]) for lane, c in crossings).values())


@given(any_facts(), st.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_plan(facts: Facts, random: Any) -> None:
    shuffled = list(facts.members)
    random.shuffle(shuffled)
    assert plan(facts) == plan(replace(facts, members=tuple(shuffled)))


@given(any_facts(fresh=True))
def test_what_was_planned_stays(facts: Facts) -> None:
    made = plan(facts)
    again = plan(told(facts, made))
    for before, after in zip(made, again, strict=True):
        assert {n: p for n, p in after.items() if n in before} == before


@given(any_facts())
def test_an_edge_that_works_is_kept(facts: Facts) -> None:
    """Unless it is in a circle, its parent is slow, or the child gave it up for a complaint."""
    members = {m.node: m for m in facts.members}
    forest = grown(facts)
    accused = {p for _, p in facts.accused}
    for lane, edges in enumerate(plan(facts)):
        circle = any(_in_circle(facts, lane, m.node) for m in facts.members)
        for m in facts.members:
            parent = m.parents[lane]
            if parent is None or m.gone or m.stuck or circle or not forest.may_feed(parent, m.node):
                continue
            if m.slow or m.node in accused or (m.node, parent) in facts.accused:
                continue
            if parent in members and members[parent].slow:
                continue
            assert edges.get(m.node) == parent


def _in_circle(facts: Facts, lane: int, node: str) -> bool:
    parents = {m.node: m.parents[lane] for m in facts.members}
    seen, at = set[str](), parents.get(node)
    while at is not None and at not in seen:
        if at == node:
            return True
        seen.add(at)
        at = parents.get(at)
    return False


@given(any_facts())
def test_it_comes_to_rest(facts: Facts) -> None:
    """Under unchanged facts the plan stops moving after a few rounds, so that no agent is told back and forth."""
    seen = []
    for _ in range(12):
        made = plan(facts)
        seen.append(made)
        facts = told(facts, made)
    assert seen[-1] == seen[-2]


@given(any_facts(fresh=True))
def test_the_source_is_spared_when_another_can_feed(facts: Facts) -> None:
    facts = replace(facts, sources=facts.roots[:1], policy="Any", lanes_per_root=None)
    for edges in plan(facts):
        assert sum(1 for p in edges.values() if p == facts.sources[0]) <= 1


@given(any_facts(fresh=True))
def test_a_node_to_avoid_feeds_nobody_while_a_sealed_one_is_free(facts: Facts) -> None:
    facts = replace(facts, policy="Any", lanes_per_root=None)
    for edges in plan(facts):
        free = set(facts.roots) - facts.avoid - set(edges.values())
        assert not free or not facts.avoid & set(edges.values())


@given(any_facts(fresh=True))
def test_who_serves_feeds_nobody_while_an_idle_one_is_free(facts: Facts) -> None:
    facts = replace(facts, policy="Any", lanes_per_root=None, avoid=frozenset())
    for edges in plan(facts):
        free = set(facts.roots) - facts.serving - set(edges.values())
        assert not free or not facts.serving & set(edges.values())


@given(any_facts(), st.randoms(use_true_random=False))
def test_any_mixture_of_fallbacks_is_a_forest(facts: Facts, random: Any) -> None:
    """However many children leave their parents at once, no circle comes about."""
    forest = grown(facts)
    for lane in forest.lanes:
        lists = {c: fallbacks(forest, lane, c) for c in forest.parent[lane]}
        for child, names in lists.items():
            assert names[0] == forest.parent[lane][child]
            assert child not in names
            assert len(set(names)) == len(names) <= 8
        for _ in range(5):
            moved = {c: random.choice(names) for c, names in lists.items()}
            for child in moved:
                root_of(child, moved)


@settings(max_examples=50)
@given(st.integers(1, 12))
def test_everybody_arrives_in_a_chain(count: int) -> None:
    """All ready at once, each allocates as soon as it has a parent: a chain forms, and the source feeds one of them."""
    names = [f"n{i:02}" for i in range(count)]
    members = tuple(Member(n, i, (0,), (None,)) for i, n in enumerate(names))
    facts = Facts((SIZE,), ("s",), ("s",), members)
    for _ in range(count + 1):
        made = plan(facts)
        facts = told(facts, made)
        facts = replace(facts, members=tuple(replace(m, serving=m.node in made[0]) for m in facts.members))
    assert made[0] == {n: names[i - 1] if i else "s" for i, n in enumerate(names)}


def test_two_tails_never_fall_back_to_each_other() -> None:
    members = tuple(Member(n, i, (50,), (f"s{i}",), serving=True) for i, n in enumerate("ab"))
    forest = grown(Facts((SIZE,), ("s0", "s1"), ("s0", "s1"), members))
    assert fallbacks(forest, 0, "b") == ["s1", "a", "s0"]
    assert fallbacks(forest, 0, "a") == ["s0", "s1"], "b comes later in the order"
