"""Places: no two ranks that hold different bytes share one, whatever the sizes; pods divide the ranks without a gap.

What a rank holds follows from all of its ranks. They are computed here by the definitions (how the tensor ranks are cut
for attention and for experts); tests/engine/test_places.py holds SGLang's own functions against the same claims.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.place import Place
from flashboot_operator.core.ranks import names_of, places_of_pod

UID, EXPECTED = "11111111-2222-3333-4444-555555555555", "sha256:" + "0" * 64
powers = st.sampled_from([1, 2, 3, 4])


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, int]:
    """Sizes that fit together: attention and experts each cut the tensor ranks in three ways."""
    attention, experts = draw(st.tuples(powers, powers)), draw(st.tuples(powers, powers))
    tensor = math.lcm(attention[0] * attention[1], experts[0] * experts[1]) * draw(st.integers(1, 2))
    return {
        "tp": tensor,
        "pp": draw(st.integers(1, 3)),
        "dp": draw(st.integers(1, 2)),
        "attn_dp": attention[0],
        "attn_cp": attention[1],
        "moe_dp": experts[0],
        "moe_ep": experts[1],
        "drafts": draw(st.integers(0, 2)),
    }


def all_ranks(size: dict[str, int]) -> list[tuple[Place, tuple[int, ...]]]:
    """Every process of a replica: its place, and all ranks that decide what it holds."""
    attn_tp = size["tp"] // size["attn_dp"] // size["attn_cp"]
    moe_tp = size["tp"] // size["moe_dp"] // size["moe_ep"]
    found: list[tuple[Place, tuple[int, ...]]] = []
    for draft in range(size["drafts"] + 1):
        for _copy in range(size["dp"]):
            for pp in range(size["pp"]):
                for tp in range(size["tp"]):
                    attention = (tp // attn_tp // size["attn_cp"], tp // attn_tp % size["attn_cp"], tp % attn_tp)
                    experts = (tp // moe_tp // size["moe_ep"], tp // moe_tp % size["moe_ep"], tp % moe_tp)
                    found.append((Place(pp=pp, tp=tp, draft=draft), (draft, pp, *attention, *experts)))
    return found


@settings(max_examples=50, deadline=None)
@given(sizes())
def test_a_place_stands_for_one_set_of_bytes_and_has_a_name_and_an_arena_of_its_own(size: dict[str, int]) -> None:
    holds: dict[Place, tuple[int, ...]] = {}
    for place, ranks in all_ranks(size):
        assert holds.setdefault(place, ranks) == ranks, f"{place} would be two arenas at once"
    assert len(holds) == size["pp"] * size["tp"] * (size["drafts"] + 1), "copies of a model share their places"
    assert len({str(place) for place in holds}) == len(holds)
    assert len({arena_id(UID, EXPECTED, place) for place in holds}) == len(holds)


@given(st.builds(Place, pp=st.integers(0, 4095), tp=st.integers(0, 4095), draft=st.integers(0, 255)))
def test_a_name_says_the_place_and_nothing_else(place: Place) -> None:
    parts = {"pp": 0, "draft": 0} | {
        word.rstrip("0123456789"): int(word.lstrip("abcdefghijklmnopqrstuvwxyz")) for word in str(place).split("-")
    }
    assert Place(**parts) == place


@given(tensor=st.integers(1, 64), pipeline=st.integers(1, 16), pods=st.integers(1, 16))
def test_the_pods_of_a_replica_divide_its_ranks(tensor: int, pipeline: int, pods: int) -> None:
    even = not (pipeline % pods and pods % pipeline) and tensor % max(pods // pipeline, 1) == 0
    if not even:
        with pytest.raises(ValueError, match="divided evenly"):
            places_of_pod(tensor=tensor, pipeline=pipeline, pods=pods)
        return
    parts = [places_of_pod(tensor=tensor, pipeline=pipeline, pods=pods, index=i) for i in range(pods)]
    together = [place for part in parts for place in part]
    assert together == [Place(pp=pp, tp=tp) for pp in range(pipeline) for tp in range(tensor)]
    assert len({len(part) for part in parts}) == 1, "evenly"


def test_a_pod_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no pod 2 in a replica of 2"):
        places_of_pod(tensor=2, pipeline=1, pods=2, index=2)


def test_names_for_people() -> None:
    assert names_of(places_of_pod(tensor=1, pipeline=1)) == "rank tp0"
    assert names_of(places_of_pod(tensor=2, pipeline=2)) == "ranks tp0, tp1, pp1-tp0, pp1-tp1"
    assert names_of(places_of_pod(tensor=8, pipeline=1)) == "ranks tp0 to tp7"
