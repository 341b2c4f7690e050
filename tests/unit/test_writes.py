"""The budget of writes: never more than it allows, nobody waits for ever, who comes first is served first."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from flashboot_operator.core.writes import LATE_S, WriteBudget


def test_a_burst_at_once_and_then_one_at_a_time() -> None:
    budget: WriteBudget[str] = WriteBudget(10, 3)
    waits = [round(budget.take(name, 100.0), 3) for name in "abcde"]
    assert waits == [0, 0, 0, 0.1, 0.2]
    assert round(budget.take("d", 100.05), 3) == 0.05, "a turn is kept, not given anew"
    assert budget.take("e", 100.2) == 0
    assert budget.take("d", 100.2) == 0
    assert [budget.take(name, 200.0) for name in "abc"] == [0, 0, 0], "after a pause the burst is there again"


def test_a_turn_that_is_not_taken_is_lost() -> None:
    budget: WriteBudget[str] = WriteBudget(1, 1)
    assert budget.take("a", 0.0) == 0
    assert budget.take("b", 0.0) == 1
    assert budget.take("c", 0.0) == 2
    assert budget.take("b", 1.5 + LATE_S) > 0, "the turns after its own are others'"


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 0.5)), min_size=1, max_size=200))
def test_no_window_has_more_writes_than_allowed(asks: Sequence[tuple[int, float]]) -> None:
    rate, burst, now = 10.0, 5, 0.0
    budget: WriteBudget[int] = WriteBudget(rate, burst)
    written: list[float] = []
    waiting: dict[int, float] = {}
    for key, pause in asks:
        now += pause
        for other in sorted((k for k, due in waiting.items() if due <= now), key=waiting.__getitem__):
            due = waiting.pop(other)
            assert budget.take(other, due) < 1e-9, "whoever comes back in time for his turn has it"
            written.append(due)
        wait = budget.take(key, now)
        if wait:
            waiting[key] = now + wait
        else:
            waiting.pop(key, None)
            written.append(now)
    written.sort()
    for i, start in enumerate(written):
        within = [t for t in written[i:] if t <= start + 1.0]
        assert len(within) <= burst + rate + 1, within
