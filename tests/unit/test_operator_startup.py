"""The engines' phases in the status, once per scale-up; and the grace period that engines are told."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from flashboot_agent.wire.observed_pod import StartupTimes
from flashboot_operator.core.grace import GRACE_VARIABLE, grace_seconds
from flashboot_operator.core.plan import Memory
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from flashboot_operator.core.workload import deployment
from tests.unit.operatorkit import NOW, TEMPLATE, agent, arena, owner, pod, seen, spec, world


def times(load: int, ready: int | None) -> StartupTimes:
    return StartupTimes(
        load_weight_milliseconds=load,
        kv_cache_allocation_milliseconds=20,
        cuda_graph_milliseconds=3000 - load,
        scheduler_milliseconds=9000,
        tokenizer_milliseconds=9500,
        api_ready_milliseconds=ready,
    )


def look(told: list[StartupTimes | None], before: dict[str, Any] | None = None, *, at: int = 0) -> dict[str, Any]:
    """The status with one Ready clone per entry, which told (or did not tell) its times."""
    ready_at = NOW + timedelta(seconds=at)
    pods = [pod(f"p{i}", f"n{i}", ready=True, ready_at=ready_at) for i in range(len(told))]
    agents = [
        agent(f"n{i}", pods=[seen(f"p{i}", "attached").model_copy(update={"startup": each})], arenas=[arena()])
        for i, each in enumerate(told)
    ]
    here, there = owner(replicas=len(told)), world(pods, agents)
    status = compute_status(
        here, there, plan_replica(here, there, Memory()), generation=1, before=before or {}, refused=None
    )
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")


def test_the_slowest_engine_counts_in_each_phase() -> None:
    assert look([times(200, 15000), times(900, None)])["lastClone"]["engine"] == {
        "loadWeightMilliseconds": 900,
        "kvCacheAllocationMilliseconds": 20,
        "cudaGraphMilliseconds": 2800,
        "schedulerMilliseconds": 9000,
        "tokenizerMilliseconds": 9500,
        "apiReadyMilliseconds": 15000,
    }


def test_a_late_word_completes_the_record_once_and_a_later_one_changes_nothing() -> None:
    first = look([times(200, 15000), None])
    assert "engine" not in first["lastClone"]
    second = look([times(200, 15000), times(900, 16000)], first)
    assert second["lastClone"] == {**first["lastClone"], "engine": second["lastClone"]["engine"]}
    assert look([times(1, 1), times(1, 1)], second)["lastClone"] == second["lastClone"]


def test_the_next_scale_up_has_a_record_of_its_own() -> None:
    first = look([times(200, 15000)])
    assert look([times(1, 1)], first, at=60)["lastClone"]["engine"]["apiReadyMilliseconds"] == 1


SLEEP = {"lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}


@pytest.mark.parametrize(
    ("granted", "engine", "seconds"),
    [(None, {}, 30), (600, {}, 600), (600, SLEEP, 595), (3, SLEEP, 1), (0, {}, 1)],
)
def test_grace_is_what_is_left_after_a_sleeping_prestop(
    granted: int | None, engine: dict[str, Any], seconds: int
) -> None:
    granted_pod = {} if granted is None else {"terminationGracePeriodSeconds": granted}
    assert grace_seconds(granted_pod, engine) == seconds


def test_the_engine_is_told_and_a_variable_of_the_template_stays() -> None:
    def env(**more: Any) -> list[dict[str, str]]:
        template = copy.deepcopy(TEMPLATE)
        template["spec"]["terminationGracePeriodSeconds"] = 120
        template["spec"]["containers"][0] |= more
        made = deployment({"name": "m", "namespace": "ns", "uid": "u-1"}, spec(template=template))
        engine: dict[str, Any] = made["spec"]["template"]["spec"]["containers"][0]
        return list(engine["env"])

    ours = {"name": GRACE_VARIABLE, "value": "120"}
    assert env() == [ours]
    assert env(env=[{"name": "A", "value": "b"}]) == [{"name": "A", "value": "b"}, ours]
    assert env(env=[ours | {"value": "60"}]) == [ours | {"value": "60"}]
