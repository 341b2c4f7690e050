"""The layout document: how small it is, and what each kind of wrong content is told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flashboot_agent import _native
from flashboot_agent.wire.layout import Layout, LayoutError, read_head
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView
from flashboot_agent.wire.layout_head import canonical
from tests.layouts import PARAMETER, parts, sealed, small

SMALL = small()


def test_twenty_thousand_tensors_are_a_third_of_a_megabyte() -> None:
    names = [
        f"model.layers.{n // 330}.mlp.experts.{n % 330}.{part}_proj"
        for n in range(6700)
        for part in ("gate", "up", "down")
    ]
    shapes = {"gate": (1408, 7168), "up": (1408, 7168), "down": (7168, 1408)}
    storages, tensors, end = [], [], 0
    for number, name in enumerate(names):
        shape = shapes[name.rpartition(".")[2].removesuffix("_proj")]
        storages.append(Storage(end, 2 * math.prod(shape)))
        tensors.append(TensorView(number, 0, shape, (shape[1], 1), "bfloat16", parameter=True, cls=PARAMETER))
        end += storages[-1].bytes
    layout = Layout(
        identity={},
        arena_bytes=end,
        segments=[Segment(0, end)],
        storages=storages,
        tensors=tensors,
        bindings=[Binding(name, "weight", "parameter", number) for number, name in enumerate(names)],
        scalars={name: {"padded": True} for name in names},
    )
    assert len(layout.to_bytes()) < 400_000
    assert [binding.module for binding in layout.bindings] == names
    assert layout.scalars.keys() == set(names)


def test_the_order_of_scalars_and_names_changes_nothing() -> None:
    turned = {module: dict(reversed(marks.items())) for module, marks in reversed(SMALL.scalars.items())}
    assert small(scalars=turned, deleted={"layers.1": ["weight", "bias"]}) == SMALL
    assert hash(small(scalars=turned)) == hash(SMALL)
    assert small(scalars={}) != SMALL


def test_one_object_per_tensor_is_found_under_each_name() -> None:
    objects = [object() for _ in SMALL.tensors]
    named: dict[str, object] = {}
    SMALL.table.by_name(objects, named)
    assert named["embed.weight"] is named["head.weight"] is objects[0]
    assert named["steps"] is objects[4]
    assert len(named) == len(SMALL.bindings)
    view = TensorView(0, 0, (1,), (1,), "uint8", parameter=False, cls="torch.Tensor")
    bindings = [Binding("a", "b.c", "attribute", 0), Binding("a.b", "c", "attribute", 0)]
    twice = small(storages=[Storage(0, 1)], tensors=[view], bindings=bindings)
    with pytest.raises(_native.Malformed, match="read the same as names"):
        twice.table.by_name(objects[:1], {})
    with pytest.raises(ValueError, match="an object for every tensor"):
        SMALL.table.by_name(objects[:1], {})
    with pytest.raises(ValueError, match="an empty dictionary is wanted"):
        SMALL.table.by_name(objects, named)


def test_scalars_come_back_as_what_they_were() -> None:
    marks: dict[str, Any] = {"a": True, "b": 1, "c": 1.0, "d": "1", "e": None, "f": -(2**63), "g": -0.0, "h": "é\n"}
    back = small(scalars={"m": marks}).scalars["m"]
    assert {key: (type(value), str(value)) for key, value in back.items()} == {
        key: (type(value), str(value)) for key, value in marks.items()
    }
    one, two = (small(scalars={"m": {"a": value}}) for value in (True, 1))
    assert one != two


def view(**changes: Any) -> list[TensorView]:
    return [SMALL.tensors[0]._replace(**changes), *SMALL.tensors[1:]]


def storage(number: int, **changes: Any) -> list[Storage]:
    storages = list(SMALL.storages)
    storages[number] = storages[number]._replace(**changes)
    return storages


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arena_bytes": 0}, "arenaBytes: 0"),
        ({"arena_bytes": True}, "arenaBytes: True"),
        ({"arena_bytes": 1 << 51}, "arenaBytes"),
        ({"segments": []}, "segments end at byte 0, the arena at 12288"),
        ({"segments": [Segment(0, 4096)]}, "segments end at byte 4096"),
        ({"segments": [Segment(0, 4096), Segment(8192, 4096)]}, "gap or overlap at byte 4096"),
        ({"segments": [Segment(0, 2048), Segment(2048, 10240)], "arena_bytes": 12288}, None),
        ({"segments": [Segment(0, 8192), Segment(8192, 4096)]}, r"storage 2 \(bytes 4096 to 9096\) goes beyond"),
        ({"storages": storage(3, bytes=4096)}, r"storage 3 .* goes beyond its segment's end at byte 12288"),
        ({"storages": storage(3, offset=9217)}, "storage 3 begins at 9217, not a multiple of 512"),
        ({"storages": storage(3, offset=8704)}, "storage 3 begins at 8704, inside the one that ends at 9096"),
        ({"storages": storage(0, bytes=-1)}, "not between 0 and"),
        ({"storages": storage(0, kind="lent")}, "'lent' is no kind"),
        ({"storages": [*SMALL.storages, Storage(9728, 1)]}, "storage 4 holds no tensor"),
        ({"tensors": view(storage=4)}, "storage of tensor 0 is 4, not below 4"),
        ({"tensors": view(storage=-1)}, "not between 0 and"),
        ({"tensors": view(offset=1)}, "tensor 0 ends at byte 64 of storage 0, which has 60"),
        ({"tensors": view(stride=(6, 1))}, "tensor 0 ends at byte 68 of storage 0"),
        ({"tensors": view(shape=(1 << 48, 1 << 48), stride=(0, 0))}, "form 0 reaches over more elements"),
        ({"tensors": view(shape=(1 << 63,), stride=(0,))}, "size of dim 0 is 9223372036854775808"),
        ({"tensors": view(stride=(5,))}, "2 sizes and 1 strides"),
        ({"tensors": view(shape=(1,) * 33, stride=(1,) * 33)}, "rank of form 0 is 33, not below 33"),
        ({"tensors": view(dtype="float3")}, "dtype 'float3' is not among"),
        ({"tensors": view(attributes={"scale": math.nan})}, "JSON can't carry"),
        ({"tensors": view(attributes={"scale": [1]})}, "attributes: something else than scalars"),
        ({"tensors": view(cls="")}, "name 0 is empty or no text"),
        ({"tensors": view(cls="c" * 1025)}, "name length 0 is 1025, not below 1025"),
        ({"tensors": view(parameter=False)}, r"binding 0 \('weight'\) wants a parameter; tensor 0 is none"),
        ({"tensors": [*SMALL.tensors, SMALL.tensors[0]]}, "tensor 5 is bound nowhere"),
        ({"bindings": [*SMALL.bindings, Binding("a", "b", "attribute", 5)]}, "tensor of binding 6 is 5, not below 5"),
        ({"bindings": [*SMALL.bindings, Binding("", "steps", "buffer", 4)]}, "has the place of another"),
        ({"bindings": [*SMALL.bindings, Binding("a..b", "c", "buffer", 4)]}, "'a..b' is no path of a module"),
        ({"bindings": [*SMALL.bindings, Binding("a" * 1025, "c", "buffer", 4)]}, "is no path of a module"),
        ({"bindings": [*SMALL.bindings, Binding("a", "\ud800", "buffer", 4)]}, "surrogates"),
        ({"identity": {"a": 1}}, "identity: no texts"),
        ({"identity": {"a": "b" * 65537}}, "identity: no texts"),
        ({"scalars": {"m": {"a": math.inf}}}, "JSON can't carry"),
        ({"scalars": {"m": {"a": 1 << 63}}}, "scalars: the marks of 0"),
        ({"scalars": {"m": {"a": "\ud800"}}}, "JSON can't carry"),
        ({"structure": 1}, "structure: no text"),
    ],
)  # fmt: skip
def test_wrong_content_is_told(changes: dict[str, Any], says: str | None) -> None:
    if says is None:
        small(**changes)
        return
    with pytest.raises(LayoutError, match=says):
        small(**changes)


def with_head(**changes: Any) -> bytes:
    """The small layout with a changed head, canonical and under a right checksum."""
    head, tables = parts(SMALL.to_bytes())
    return sealed(canonical(json.loads(head) | changes), tables)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "no layout document: 0 bytes"),
        (b'{"schemaVersion":1}' + b" " * 20, "no layout document"),
        (SMALL.to_bytes()[:8] + b"\3" + SMALL.to_bytes()[9:], "a layout of version 3; this FlashBoot reads version 2"),
        (SMALL.to_bytes()[:-1], "differs from its checksum"),
        (SMALL.to_bytes() + b"x", "differs from its checksum"),
        (with_head(more=1), "other fields"),
        (with_head(scalars=[[{"a": 1}, [0]], [{"b": 1}, [0]]]), "scalars: a module is there twice"),
        (with_head(scalars=[[{"a": 1}, [10]]]), "is none of 7"),
        (with_head(scalars=[[{"a": 1}, [-1]]]), "scalars: 0 has wrong modules"),
        (with_head(scalars=[[{}, [0]]]), "scalars: the marks of 0"),
        (with_head(deleted=[[["b", "a"], [0]]]), "deleted: the marks of 0"),
        (with_head(deleted={}), "deleted are no list"),
        (with_head(segments=[[0]]), "segments: 0 is no pair"),
        (with_head(attributes=[{}]), "attributes of form 0 is 1, not below 1"),
    ],
)
def test_a_wrong_document_is_told(document: bytes, says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        Layout.from_bytes(document)


def test_a_head_that_is_written_in_another_way_is_refused() -> None:
    head, tables = parts(SMALL.to_bytes())
    assert Layout.from_bytes(sealed(head, tables)) == SMALL
    for other in (head + b" ", head[:-1] + b',"structure":null}', b"[" * 100_000, b"\xff"):
        with pytest.raises(LayoutError, match="head"):
            read_head(sealed(other, tables))
