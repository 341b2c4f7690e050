"""Who is found slow in simulated fan-outs, from reports alone as in the operator: the straggler, and nobody else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_operator.core.fanout.scenario import Scenario, Straggler
from flashboot_operator.core.fanout.watched import watch

MIB = 1 << 20
LINK = 37.5e6
"""300 Mbit/s, as in the rack."""


def rack(targets: int, **more: object) -> Scenario:
    return Scenario(targets, 256 * MIB, LINK, 200e-6, float(MIB), **more)  # type: ignore[arg-type]


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 12), st.integers(0, 99), st.sampled_from([0.0, 3.0, 15.0]), st.sampled_from([1.0, 0.5, 0.25]))
def test_nobody_is_slow_among_equals(targets: int, seed: int, spread: float, cap: float) -> None:
    dice = random.Random(seed)
    ready = tuple(dice.uniform(0, spread) for _ in range(targets))
    sources = round(1 / cap)
    _, verdicts = watch(rack(targets, ready=ready, sources=sources, lanes=sources, source_cap=cap * LINK))
    assert verdicts == []
    _, verdicts = watch(rack(targets, ready=ready, source_cap=cap * LINK))
    assert verdicts == [], "a capped source makes nobody slow either"


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 12), st.integers(0, 11), st.sampled_from([0.0, 2.0]))
def test_a_straggler_is_found_within_two_seconds_and_costs_the_others_little(
    targets: int, victim: int, at: float
) -> None:
    scenario = rack(targets, stragglers=(Straggler(victim % targets, 0.25, at=at),))
    name = scenario.target_names[victim % targets]
    outcome, verdicts = watch(scenario)
    assert all(set(said) <= {name} for _, said in verdicts), verdicts
    others = max(took for node, took in outcome.took.items() if node != name)
    assert others < scenario.ideal_s + 2.0
    if victim % targets < targets - 1:
        assert verdicts, "somebody waits for it"
        assert verdicts[0][0] < at + 2.0


@pytest.mark.parametrize("victims", [(2, 5), (0, 4), (3, 8)])
def test_two_stragglers_are_found_and_nobody_moves_to_and_fro(victims: tuple[int, int]) -> None:
    scenario = rack(10, stragglers=tuple(Straggler(v, 0.25) for v in victims))
    slow = {scenario.target_names[v] for v in victims}
    outcome, verdicts = watch(scenario)
    assert all(set(said) <= slow for _, said in verdicts), verdicts
    others = max(took for node, took in outcome.took.items() if node not in slow)
    assert others < scenario.ideal_s + 4.0
    sizes = [len(said) for at, said in verdicts if at < others]
    assert sizes == sorted(sizes), "who is slow stays so"
