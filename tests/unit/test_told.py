"""From a bound pod to an agent that was told: each stage once per pod."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flashboot_agent.wire.desired import Desired, WantedArena
from flashboot_operator.reconcile.told import Told
from tests.unit.operatorkit import ARENA, EXPECTED, OWNER_UID


def desired(*pods: str) -> Desired:
    wanted = WantedArena(
        arena=ARENA,
        namespace="ns",
        model_replica="m",
        model_replica_uid=OWNER_UID,
        expected_identity=EXPECTED,
        role="clone",
        pods=list(pods),
    )
    return Desired(epoch=1, revision=1, node="n1", arenas=[wanted])


UID = "aaaa0000"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr("flashboot_operator.reconcile.told.time.monotonic", lambda: at[0])
    return at


def test_the_stages_add_up(clock: list[float]) -> None:
    seen: list[Mapping[str, float]] = []
    told = Told(seen.append)
    told.bound(UID)
    clock[0] = 100.7
    told.decided([UID], looked=100.5)
    clock[0] = 100.8
    told.decided([UID], looked=100.75)
    clock[0] = 101.0
    told.acknowledged(desired(UID))
    told.acknowledged(desired(UID))
    (stages,) = seen
    assert {name: round(value, 3) for name, value in stages.items()} == {
        "queue": 0.5,
        "plan": 0.2,
        "put": 0.3,
        "whole": 1.0,
    }


def test_nothing_is_told_of_pods_that_were_not_decided_or_not_followed(clock: list[float]) -> None:
    seen: list[Mapping[str, float]] = []
    told = Told(seen.append)
    told.bound(UID)
    told.acknowledged(desired(UID, "bbbb0000"))
    assert not seen
    told.gone(UID)
    told.decided([UID], looked=1.0)
    told.acknowledged(desired(UID))
    assert not seen
