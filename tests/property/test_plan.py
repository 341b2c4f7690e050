"""The fan-out plan, for any facts: a forest below sealed roots, nobody below one who has less, one child each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_operator.core.plan import Child, Facts, plan

SIZE = 100
START = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [f"n{i}" for i in range(9)]


@st.composite
def facts(draw: st.DrawFn, *, fresh: bool = False) -> Facts:
    """`fresh`: nobody has a parent yet and nobody has complained."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    roots = names[: draw(st.integers(1, len(names)))]
    children = []
    for name in names[len(roots) :]:
        serving = draw(st.booleans())
        children.append(
            Child(
                node=name,
                arrival=START + timedelta(seconds=draw(st.integers(0, 3))),
                watermark=draw(st.integers(0, SIZE)) if serving else 0,
                serving=serving,
                parent=None if fresh else draw(st.none() | st.sampled_from(NAMES)),
                stuck=not serving and not fresh and draw(st.booleans()),
            )
        )
    pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))
    return Facts(
        source=draw(st.sampled_from(roots)),
        roots=dict.fromkeys(roots, SIZE),
        children=draw(st.permutations(children)),
        accused=frozenset() if fresh else draw(st.frozensets(pairs, max_size=3)),
        domains={name: draw(st.sampled_from(["a", "b"])) for name in NAMES},
        policy=draw(st.sampled_from(["RequireSame", "PreferSame", "Any"])),
    )


def root_of(node: str, edges: dict[str, str]) -> str:
    seen = {node}
    while node in edges:
        node = edges[node]
        assert node not in seen, f"a cycle through {node}: {edges}"
        seen.add(node)
    return node


@given(facts())
def test_a_forest_without_cycles(given_: Facts) -> None:
    edges = plan(given_)
    children = {c.node: c for c in given_.children}
    for child, parent in edges.items():
        assert child in children
        root_of(child, edges)
        assert parent in given_.roots or (children[parent].serving and not children[parent].stuck)
        if given_.policy == "RequireSame":
            assert given_.domains[child] == given_.domains[parent]


@given(facts())
def test_a_new_edge_has_a_root_and_a_parent_that_is_ahead(given_: Facts) -> None:
    edges = plan(given_)
    children = {c.node: c for c in given_.children}
    for child, parent in edges.items():
        if children[child].parent == parent:
            continue
        assert root_of(child, edges) in given_.roots
        ahead = given_.roots.get(parent, children[parent].watermark if parent in children else -1)
        assert ahead >= children[child].watermark


@given(facts(fresh=True))
def test_one_child_per_node(given_: Facts) -> None:
    counts = Counter(plan(given_).values())
    assert all(count == 1 for count in counts.values()), counts


@given(facts(), st.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_plan(given_: Facts, random: object) -> None:
    shuffled = list(given_.children)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan(given_) == plan(replace(given_, children=shuffled))


@given(facts(fresh=True))
def test_what_was_planned_stays(given_: Facts) -> None:
    edges = plan(given_)
    told = [replace(c, parent=edges.get(c.node)) for c in given_.children]
    again = plan(replace(given_, children=told))
    assert {n: p for n, p in again.items() if n in edges} == edges


@given(facts())
def test_complaints_come_to_rest(given_: Facts) -> None:
    """Under unchanged facts the plan stops moving after a few rounds, so that no agent is told back and forth."""
    seen = []
    for _ in range(12):
        edges = plan(given_)
        seen.append(edges)
        given_ = replace(given_, children=[replace(c, parent=edges.get(c.node)) for c in given_.children])
    assert seen[-1] == seen[-2]


@given(facts(fresh=True))
def test_the_source_is_spared_when_another_can_feed(given_: Facts) -> None:
    edges = plan(given_)
    fed = [c for c, p in edges.items() if p == given_.source]
    assert len(fed) <= 1


@settings(max_examples=50)
@given(st.integers(1, 12))
def test_everybody_arrives_in_a_chain(count: int) -> None:
    """All ready at once, each allocates as soon as it has a parent: a chain forms, and the source feeds one of them."""
    children = {f"n{i:02}": Child(f"n{i:02}", START + timedelta(seconds=i)) for i in range(count)}
    for _ in range(count + 1):
        edges = plan(Facts("s", {"s": SIZE}, list(children.values())))
        children = {n: replace(c, parent=edges.get(n), serving=n in edges) for n, c in children.items()}
    assert edges == {f"n{i:02}": f"n{i - 1:02}" if i else "s" for i in range(count)}
