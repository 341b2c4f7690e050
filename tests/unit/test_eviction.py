"""Which copies make room, as a table and as properties; and that the operator's word for it is said only if needed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent.node.evict import Copy, choose
from flashboot_agent.wire.desired import WantedArena
from tests.unit.test_rules import wants

T0 = datetime(2026, 3, 1, tzinfo=UTC)


def copy(name: str, nbytes: int, at: int, *, last: bool = False) -> Copy:
    return Copy(name, nbytes, last, T0 + timedelta(seconds=at))


def names(copies: list[Copy]) -> list[str]:
    return [each.name for each in copies]


OLD, NEW, LAST = copy("old", 10, 1), copy("new", 10, 2), copy("last", 10, 0, last=True)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        (1, ["old"]),
        (10, ["old"]),
        (11, ["old", "new"]),
        (21, ["old", "new", "last"]),
        (31, []),
    ],
)
def test_the_least_recently_used_goes_first_and_the_last_of_its_kind_last(missing: int, expected: list[str]) -> None:
    assert names(choose([LAST, NEW, OLD], missing)) == expected


def test_what_a_larger_one_makes_needless_stays() -> None:
    assert names(choose([copy("small", 1, 1), copy("large", 50, 2)], 40)) == ["large"]


copies = st.lists(
    st.builds(copy, st.uuids().map(str), st.integers(1, 100), st.integers(0, 9), last=st.booleans()), max_size=8
)


@settings(deadline=None)
@given(copies, st.integers(1, 500))
def test_enough_goes_or_nothing_and_nobody_in_vain(all_: list[Copy], missing: int) -> None:
    chosen = choose(all_, missing)
    freed = sum(each.nbytes for each in chosen)
    if sum(each.nbytes for each in all_) < missing:
        assert chosen == []
    else:
        assert freed >= missing
        assert all(freed - each.nbytes < missing for each in chosen), "each of them is needed"


def test_an_agent_of_before_is_told_nothing_that_it_does_not_know() -> None:
    said = json.loads(wants("hold").to_json())
    assert "eviction" not in said
    assert WantedArena.model_validate(said).eviction == "never"
    spare = wants("hold", eviction="spare")
    assert WantedArena.model_validate_json(spare.to_json()) == spare
