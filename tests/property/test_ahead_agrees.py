"""What `_ahead` takes without Python, Python would take as well: any document, any packet, any identity."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent import _native
from flashboot_agent._ahead import Ahead
from flashboot_agent.core.identity import document_digest
from flashboot_agent.engine import messages
from flashboot_agent.wire.layout import Layout, LayoutError
from flashboot_agent.wire.layout_entries import Segment
from flashboot_agent.wire.layout_head import canonical
from tests.layouts import parts, plain, sealed
from tests.offers import ARENA, DOCUMENT, HELLO, IDENTITY, LAYOUT, XXH, Agent, asked, ready

MEMORY = bytes(LAYOUT.arena_bytes)
texts = st.text(st.characters(codec="utf-8"), max_size=20)


def takes(document: bytes, identity: dict[str, str], nbytes: int) -> bool:
    arena = os.memfd_create("arena")
    os.ftruncate(arena, nbytes)
    try:
        return Ahead(canonical(identity)).take(ARENA, nbytes, XXH, arena, document)
    finally:
        os.close(arena)


def python_takes(document: bytes, identity: dict[str, str], nbytes: int) -> bool:
    """Whether Python reads it, and it is of plain tensors."""
    try:
        layout = Layout.from_bytes(document)
    except LayoutError:
        return False
    beside = (layout.scalars, layout.deleted, layout.structure, layout.segments)
    return (
        layout.identity == identity
        and 0 < layout.arena_bytes <= nbytes
        and beside == ({}, {}, None, [Segment(0, layout.arena_bytes)])
        and layout._head.attributes == [{}]
        and layout.table.all_in_place
    )


@given(st.dictionaries(texts, texts, max_size=4), st.integers(1, 5))
def test_a_layout_of_plain_tensors_is_taken_whatever_its_identity(identity: dict[str, str], count: int) -> None:
    layout = plain(count, identity)
    assert takes(layout.to_bytes(), identity, layout.arena_bytes)
    assert not takes(layout.to_bytes(), identity, layout.arena_bytes - 1)
    assert not takes(layout.to_bytes(), {**identity, "more": ""}, layout.arena_bytes)


@settings(max_examples=400)
@given(st.data())
def test_of_any_document_python_would_say_the_same(data: st.DataObject) -> None:
    """One or two bytes of head or tables changed, under a right checksum."""
    head, tables = map(bytearray, parts(DOCUMENT))
    for part in data.draw(st.lists(st.sampled_from([head, tables]), min_size=1, max_size=2)):
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    document = sealed(bytes(head), bytes(tables))
    expected = python_takes(document, IDENTITY, LAYOUT.arena_bytes)
    assert takes(document, IDENTITY, LAYOUT.arena_bytes) == expected


HEADS: list[Callable[[dict[str, Any]], Any]] = [
    lambda head: {**head, "arenaBytes": 0, "segments": []},
    lambda head: {**head, "arenaBytes": 1 << 60, "segments": [[0, 1 << 60]]},
    lambda head: {**head, "arenaBytes": -1536, "segments": [[0, -1536]]},
    lambda head: {**head, "segments": [[0, 512], [512, 1024]]},
    lambda head: {**head, "attributes": []},
    lambda head: {**head, "attributes": [{"a": 1}]},
    lambda head: {**head, "scalars": [[{"a": 1}, [0]]]},
    lambda head: {**head, "deleted": [[["a"], [0]]]},
    lambda head: {**head, "structure": "sha256:"},
    lambda head: {**head, "identity": {}},
    lambda head: {**head, "more": 1},
    lambda head: [head],
]


@pytest.mark.parametrize("change", HEADS)
def test_a_head_with_anything_else_in_it_is_not_taken(change: Callable[[dict[str, Any]], Any]) -> None:
    head, tables = parts(DOCUMENT)
    assert takes(sealed(head, tables), IDENTITY, LAYOUT.arena_bytes)
    document = sealed(canonical(change(json.loads(head))), tables)
    assert not takes(document, IDENTITY, LAYOUT.arena_bytes)
    assert not python_takes(document, IDENTITY, LAYOUT.arena_bytes)


@pytest.mark.parametrize("again", [lambda head: head + b" ", lambda head: head.replace(b":[0,", b":[0, ")])
def test_a_head_in_another_form_is_not_taken(again: Callable[[bytes], bytes]) -> None:
    head, tables = parts(DOCUMENT)
    document = sealed(again(head.replace(b"[[0,", b"[[0, ")), tables)
    assert not takes(document, IDENTITY, LAYOUT.arena_bytes)
    assert not python_takes(document, IDENTITY, LAYOUT.arena_bytes)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(ready()) - 1), st.integers(1, 255))
def test_an_offer_that_is_taken_reads_the_same_in_python(at: int, by: int) -> None:
    changed = bytearray(ready())
    changed[at] ^= by
    packet = bytes(changed)
    there = Agent(packet, [MEMORY, DOCUMENT])
    ahead = asked()
    if ahead.ask(there.path, HELLO, 20):
        heard = messages.read(packet)
        assert isinstance(heard, messages.Ready)
        assert (heard.arena, heard.bytes, heard.digest) == (ahead.arena, ahead.nbytes, ahead.digest)
        assert heard.layout_digest == document_digest(DOCUMENT)
    elif (said := ahead.answer()) is not None:
        for descriptor in (said[0], *said[2]):
            os.close(descriptor)
    del ahead
    there.close()


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_frame_of_a_document_is_found_by_its_lengths_and_checksum(head: bytes, tables: bytes) -> None:
    document = sealed(head, tables)
    assert _native.layout_parts(document) == (head, tables)
    for wrong in (document[:-1], document + b"\0", document[:20] + b"\xff" + document[21:], document[:12]):
        with pytest.raises(_native.Malformed):
            _native.layout_parts(wrong)
