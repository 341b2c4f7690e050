"""Orders to update an arena, on the wire: what is refused, and that who does not know them is told nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.update import ObservedUpdate, WantedUpdate

KEY = "ab" * 32
OWNER: dict[str, Any] = {
    "arena": "arena-" + "1" * 32,
    "namespace": "serving",
    "model_replica": "m",
    "model_replica_uid": "11111111-2222",
    "expected_identity": "sha256:" + "0" * 64,
}


@pytest.mark.parametrize("origin", ["https://trainer/published", "http://10.0.0.1:80/x/", "/published/tp0"])
def test_origins_are_addresses_or_absolute_paths(origin: str) -> None:
    order = WantedUpdate(version=1, origin=origin, keys=[KEY])
    wanted = WantedArena(**OWNER, role="hold", updatable=True, update=order)
    assert WantedArena.model_validate_json(wanted.to_json()) == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": "published"},
        {"origin": "ftp://trainer/x"},
        {"origin": "https://a b/"},
        {"keys": []},
        {"keys": ["AB" * 32]},
        {"keys": ["ab" * 31]},
        {"version": -1},
        {"seconds": 0},
    ],
    ids=str,
)
def test_what_is_no_order_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        WantedUpdate(**{"version": 1, "origin": "/published", "keys": [KEY], **wrong})


def test_who_does_not_know_updates_is_told_nothing_of_them() -> None:
    wanted = WantedArena(**OWNER, role="hold").to_json()
    assert b"updat" not in wanted
    facts: dict[str, Any] = {
        **OWNER, "state": "sealed", "way": "seed", "bytes": 1, "watermark": 1, "created_at": "2026-11-30T00:00:00Z",
    }  # fmt: skip
    assert b"updat" not in ObservedArena(**facts).to_json()
    assert b"version" not in ObservedArena(**facts).to_json()
    update = ObservedUpdate(wanted=3, phase="fetching")
    seen = ObservedArena(**facts, version=2, updatable=True, update=update)
    assert ObservedArena.model_validate_json(seen.to_json()) == seen
