"""A node's new word is about those ModelReplicas of which it says something else than before, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from flashboot_agent.wire.observed import Observed
from flashboot_operator.agents.news import concerned, news
from tests.unit.operatorkit import agent, arena, seen

ONE = "arena-" + "1" * 32
TWO = "arena-" + "2" * 32


def word(**more: Any) -> Observed:
    """A node with a sealed arena of ns/m and one of ns/other that fills, and a pod of each."""
    arenas = [arena(name=ONE), arena("filling", name=TWO, watermark=5, model_replica="other")]
    pods = [seen("a"), seen("b").model_copy(update={"model_replica": "other"})]
    return agent("n1", arenas=arenas, pods=pods).observed.model_copy(update=more)


def test_nothing_else_is_no_news() -> None:
    assert news(word(), word(counter=9)) == set()
    assert concerned(word()) == {("ns", "m"), ("ns", "other")}
    assert concerned(None) == set()


def test_an_arena_that_moves_is_news_of_its_owner() -> None:
    before = word()
    moved = [before.arenas[0], before.arenas[1].model_copy(update={"watermark": 6})]
    assert news(before, before.model_copy(update={"arenas": moved})) == {("ns", "other")}
    assert news(before, before.model_copy(update={"arenas": before.arenas[1:]})) == {("ns", "m")}
    assert news(before.model_copy(update={"arenas": []}), before) == {("ns", "m"), ("ns", "other")}


def test_a_pod_that_comes_goes_or_changes_hands_is_news_of_its_owners() -> None:
    before = word()
    assert news(before, before.model_copy(update={"pods": before.pods[:1]})) == {("ns", "other")}
    assert news(before.model_copy(update={"pods": before.pods[:1]}), before) == {("ns", "other")}
    handed = [before.pods[0].model_copy(update={"model_replica": "third"}), before.pods[1]]
    assert news(before, before.model_copy(update={"pods": handed})) == {("ns", "m"), ("ns", "third")}


def test_a_new_revision_is_news_of_those_whose_arena_is_under_way() -> None:
    assert news(word(), word(revision=7)) == {("ns", "other")}


@pytest.mark.parametrize(
    "change",
    [{"instance": "1" * 8}, {"chunk_address": "10.0.0.9:9441"}, {"link_bytes_per_second": 5}, {"version": "u"}],
)
def test_what_is_about_the_node_concerns_everybody(change: dict[str, Any]) -> None:
    assert news(word(), word(**change)) is None
