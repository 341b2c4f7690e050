"""Layouts as bytes: any sound one comes back, and damaged bytes are an equal layout or a LayoutError, nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashboot_agent._native import LAYOUT_DTYPES
from flashboot_agent.wire.layout import ALIGNMENT, Layout, LayoutError, read_head
from tests.damage import Change, changes, mutated
from tests.layouts import parts, sealed, small
from tests.property.layoutkit import layouts

DOCUMENT = small().to_bytes()
MANY = settings(max_examples=500, deadline=None)


def content(layout: Layout) -> tuple[object, ...]:
    return (
        *(layout.identity, layout.arena_bytes, layout.segments, layout.storages, layout.tensors, layout.bindings),
        *(layout.scalars, layout.deleted, layout.structure),
    )


def made_again(layout: Layout) -> Layout:
    return Layout(
        identity=dict(reversed(layout.identity.items())),
        arena_bytes=layout.arena_bytes,
        segments=layout.segments,
        storages=layout.storages,
        tensors=layout.tensors,
        bindings=layout.bindings,
        scalars=dict(reversed(layout.scalars.items())),
        deleted={module: list(reversed(names)) for module, names in reversed(layout.deleted.items())},
        structure=layout.structure,
    )


@settings(deadline=None)
@given(layouts())
def test_what_is_written_is_read_and_the_same_content_has_the_same_bytes(layout: Layout) -> None:
    again = Layout.from_bytes(bytes(layout.to_bytes()))
    assert content(again) == content(layout)
    assert again == layout
    assert made_again(layout).to_bytes() == layout.to_bytes()
    head = read_head(layout.to_bytes())
    assert (head.identity, head.arena_bytes) == (layout.identity, layout.arena_bytes)


def require_sound(layout: Layout) -> None:
    """What every user relies on, checked the slow way."""
    ends = [segment.offset + segment.bytes for segment in layout.segments]
    end = 0
    for storage in layout.storages:
        assert storage.offset % ALIGNMENT == 0
        assert storage.offset >= end
        end = storage.offset + storage.bytes
        assert not storage.bytes or any(
            s.offset <= storage.offset and end <= s.offset + s.bytes for s in layout.segments
        )
    assert end <= ends[-1] == layout.arena_bytes
    for view in layout.tensors:
        assert len(view.shape) == len(view.stride)
        last = sum((n - 1) * step for n, step in zip(view.shape, view.stride, strict=True))
        reach = view.offset if 0 in view.shape else view.offset + last + 1
        assert reach * LAYOUT_DTYPES[view.dtype] <= layout.storages[view.storage].bytes
    assert len({binding[:2] for binding in layout.bindings}) == len(layout.bindings)
    assert {binding.tensor for binding in layout.bindings} == set(range(len(layout.tensors)))
    assert {view.storage for view in layout.tensors} == set(range(len(layout.storages)))
    assert len(str(layout.scalars) + str(layout.deleted)) < 1 << 20


def test_every_changed_byte_is_found() -> None:
    for position, byte in enumerate(DOCUMENT):
        for value in {0, 255, byte ^ 1, byte ^ 128} - {byte}:
            with pytest.raises(LayoutError):
                Layout.from_bytes(DOCUMENT[:position] + bytes([value]) + DOCUMENT[position + 1 :])


@MANY
@given(changes)
def test_damage_is_told(how: list[Change]) -> None:
    damaged = mutated(DOCUMENT, how)
    try:
        assert Layout.from_bytes(damaged).to_bytes() == DOCUMENT
    except LayoutError as error:
        assert str(error)  # noqa: PT017 # a change may put the same bytes there, so that both ends are right


@MANY
@given(changes, st.booleans())
def test_damage_under_a_right_checksum_is_told_or_makes_a_sound_layout(how: list[Change], in_tables: bool) -> None:
    head, tables = parts(DOCUMENT)
    if in_tables:
        tables = mutated(tables, how)
    else:
        head = mutated(head, how)
    try:
        require_sound(Layout.from_bytes(sealed(head, tables)))
    except LayoutError as error:
        assert str(error)  # noqa: PT017 # either way is right


@MANY
@given(st.binary(max_size=200))
def test_any_bytes_as_tables(tables: bytes) -> None:
    try:
        require_sound(Layout.from_bytes(sealed(parts(DOCUMENT)[0], tables)))
    except LayoutError as error:
        assert "tables" in str(error)  # noqa: PT017 # either way is right
