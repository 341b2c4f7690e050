"""`preloaded_weights_bytes` against SGLang's own arithmetic: one sample per process, the sum over all its models."""

from __future__ import annotations

import pytest

from flashboot_agent.engine.baseline import Baseline
from flashboot_agent.wire.place import Place

TOTAL, MAIN, DRAFT = 1000, 300, 100
TARGET, STEPS = Place(), Place(draft=1)


@pytest.mark.parametrize(
    ("main", "draft"), [(MAIN, DRAFT), (MAIN, 0), (0, DRAFT), (0, 0)], ids=["both", "main", "draft", "neither"]
)
def test_sample_and_reports_add_up_to_what_would_be_free_without_weights(main: int, draft: int) -> None:
    baseline = Baseline()
    sample = TOTAL - main - draft  # what SGLang finds free: seeds' arenas are not there yet
    baseline.sampled(TARGET, main)
    models = [TARGET]
    baseline.sampled(STEPS, draft)
    models += [STEPS, STEPS]  # a draft with a model per step, all over one arena
    assert sample + sum(baseline.report(place) for place in models) == TOTAL


def test_a_rank_counts_its_own_arena_only() -> None:
    for rank in (0, 1):
        baseline = Baseline()  # each rank is a process
        baseline.sampled(Place(tp=rank), MAIN)
        assert baseline.report(Place(tp=rank)) == MAIN
        assert baseline.report(Place(tp=1 - rank)) == 0


def test_an_arena_that_was_not_there_at_the_sample_does_not_count() -> None:
    baseline = Baseline()
    baseline.sampled(TARGET, 0)  # it was to seed, and in the end another pod's seed was faster
    baseline.sampled(TARGET, MAIN)
    assert baseline.report(TARGET) == 0


def test_a_model_that_is_loaded_again_counts_nothing() -> None:
    baseline = Baseline()
    baseline.sampled(TARGET, MAIN)
    assert [baseline.report(TARGET), baseline.report(TARGET)] == [MAIN, 0]
    baseline.sampled(TARGET, MAIN)
    assert baseline.report(TARGET) == 0
    baseline.forget(TARGET)
    baseline.sampled(TARGET, MAIN)
    assert baseline.report(TARGET) == MAIN


def test_a_model_whose_process_was_never_sampled_reports_nothing() -> None:
    assert Baseline().report(TARGET) == 0
