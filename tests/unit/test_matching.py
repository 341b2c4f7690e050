"""Which arena an engine may have, by its full identity, and when it is told that it gets none."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent.core.errors import BadRequest, IdentityMismatch
from flashboot_agent.core.identity import digest_of, require_equal
from flashboot_agent.node import documents as node_documents
from flashboot_agent.node.arena import Arena
from flashboot_agent.node.matching import Matching
from flashboot_agent.node.store import ArenaStore
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.place import Place

MINE, OTHER = {"dtype": "bfloat16", "arg.x": "1"}, {"dtype": "float8"}
OWNER = "11111111-2222"
WANTED = WantedArena(
    arena="arena-" + "1" * 32,
    namespace="serving",
    model_replica="m",
    model_replica_uid=OWNER,
    expected_identity="sha256:" + "0" * 64,
    role="clone",
)
POD = "aaaaaaaa-0000"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def arena(identity: dict[str, str] | None = None, **facts: Any) -> Arena:
    """As far as matching looks at one."""
    digest = digest_of(identity) if identity is not None else None
    record = {"identity": digest, "model_replica_uid": OWNER, "place": Place(), "digest": "xxh3:" + "0" * 16}
    layout = json.dumps(identity).encode()
    made = {"name": "a", "state": "sealed", "meta": SimpleNamespace(layout=layout)} | facts
    record |= made.pop("record", {})
    return cast("Arena", SimpleNamespace(record=SimpleNamespace(**record), **made))


def store(*arenas: Arena) -> ArenaStore:
    return cast("ArenaStore", SimpleNamespace(all=lambda: list(arenas)))


@pytest.fixture(autouse=True)
def documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layouts that are nothing but their identity."""

    def identity_of(layout: bytes) -> Any:
        if not layout:
            raise BadRequest("it is empty")
        return json.loads(layout)

    monkeypatch.setattr(node_documents, "identity_of", identity_of)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def matching(clock: Clock) -> Matching:
    return Matching(MINE, Place(), 30.0, clock)


def test_an_arena_whose_identity_nobody_knows_yet_is_no_mismatch(matching: Matching) -> None:
    assert matching.mismatch(None, None) is None
    assert matching.mismatch(None, WANTED) is None
    assert matching.mismatch(arena(), WANTED) is None
    assert matching.mismatch(arena(MINE), WANTED) is None
    assert not matching.differed


def test_a_mismatch_names_every_field_with_both_values(matching: Matching) -> None:
    found = matching.mismatch(arena(OTHER), WANTED)
    assert "arg.x: engine '1', arena a has none; dtype: engine 'bfloat16', arena a 'float8'" in str(found)
    assert matching.differed


def test_an_arena_that_is_not_here_yet_is_waited_for_a_little(matching: Matching, clock: Clock) -> None:
    """Its documents come before its bytes, and only they can name the fields."""
    wanted = WANTED.model_copy(update={"identity": digest_of(OTHER)})
    assert matching.mismatch(None, wanted) is None
    assert matching.differed
    clock.now += 2
    assert digest_of(OTHER) in str(matching.mismatch(None, wanted))
    assert "dtype" in str(matching.mismatch(arena(OTHER), wanted))
    assert matching.mismatch(arena(MINE), wanted) is None


def test_a_document_without_an_identity_is_a_mismatch_too(matching: Matching) -> None:
    broken = arena(OTHER, meta=SimpleNamespace(layout=b""))
    assert "another's" in str(matching.mismatch(broken, WANTED))


@pytest.mark.parametrize(
    "other",
    [
        arena(OTHER),
        arena(MINE, state="filling"),
        arena(MINE, record={"model_replica_uid": "99999999-2222"}),
        arena(MINE, record={"place": Place(tp=1)}),
    ],
)
def test_a_twin_is_sealed_and_of_the_same_object_rank_and_identity(matching: Matching, other: Arena) -> None:
    twin = arena(MINE)
    assert matching.twin(store(other), WANTED) is None
    assert matching.twin(store(other, twin), WANTED) is twin


def test_a_twin_of_other_bytes_is_none_when_the_operator_says_which(matching: Matching) -> None:
    wanted = WANTED.model_copy(update={"identity": digest_of(MINE), "digest": "xxh3:" + "1" * 16})
    assert matching.twin(store(arena(MINE)), wanted) is None
    of_others = wanted.model_copy(update={"identity": digest_of(OTHER)})
    assert matching.twin(store(arena(MINE)), of_others) is not None


def test_it_is_refused_when_the_operator_says_so_or_says_nothing_for_too_long(matching: Matching, clock: Clock) -> None:
    matching.mismatch(arena(OTHER), WANTED)
    assert "names no other arena" in str(matching.refused(POD, None))
    assert matching.refused(POD, WANTED) is None
    assert "onMismatch" in str(matching.refused(POD, WANTED.model_copy(update={"refused": [POD]})))
    clock.now += 29
    matching.mismatch(arena(OTHER), WANTED)
    assert matching.refused(POD, WANTED) is None
    clock.now += 1
    assert "within 30 s" in str(matching.refused(POD, WANTED))


FIELDS = st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), min_size=1, max_size=8)


@settings(deadline=None)
@given(FIELDS, st.data())
def test_any_change_of_any_field_changes_the_digest_and_is_named(fields: dict[str, str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(fields)))
    value = data.draw(st.none() | st.text(max_size=8).filter(lambda text: text != fields[name]))
    changed = {key: each for key, each in fields.items() if key != name} | ({} if value is None else {name: value})
    assert digest_of(changed) != digest_of(fields)
    with pytest.raises(IdentityMismatch) as caught:
        require_equal(fields, changed, whose="arena")
    assert f"{name}: engine {fields[name]!r}, arena" in str(caught.value)
    require_equal(fields, dict(fields), whose="arena")
