"""Tensors that a thread made before torch was imported: as those of engine/views.py, and gone when they are."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import pytest
import torch

from flashboot_agent._ahead import Ahead
from flashboot_agent.engine import views
from flashboot_agent.engine.installed import torch_libraries
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView
from flashboot_agent.wire.layout_head import canonical
from tests.engine.test_views import arena, as_bytes, every_dtype, resident_kib
from tests.layouts import PARAMETER, plain

IDENTITY = {"model": "m"}


def shared(layout: Layout) -> Layout:
    """All in place."""
    return Layout(
        identity=layout.identity,
        arena_bytes=layout.arena_bytes,
        segments=layout.segments,
        storages=[Storage(each.offset, each.bytes) for each in layout.storages],
        tensors=layout.tensors,
        bindings=layout.bindings,
    )


def in_memory(nbytes: int) -> int:
    """A memfd with the bytes of `arena`."""
    descriptor = os.memfd_create("ahead")
    os.write(descriptor, as_bytes(arena(nbytes)))
    return descriptor


def taken(layout: Layout, descriptor: int) -> Ahead:
    ahead = Ahead(canonical(layout.identity))
    assert ahead.take("a", layout.arena_bytes, "d", descriptor, layout.to_bytes())
    return ahead


def made_ahead(layout: Layout, descriptor: int) -> Ahead:
    ahead = taken(layout, descriptor)
    thread = threading.Thread(target=ahead.make, args=tuple(map(str, torch_libraries())))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return ahead


def by_name(layout: Layout) -> dict[str, Any]:
    descriptor = in_memory(layout.arena_bytes)
    named: dict[str, Any] = {}
    assert made_ahead(layout, descriptor).fill(named)
    os.close(descriptor)
    return named


def objects(named: dict[str, Any]) -> list[int]:
    """For each name the place of the first one that has the same object."""
    first: dict[int, int] = {}
    return [first.setdefault(id(tensor), number) for number, tensor in enumerate(named.values())]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("layout", [shared(every_dtype()), plain(500, IDENTITY), plain(500, IDENTITY, twice=True)])
def test_what_a_thread_made_ahead_is_the_same(layout: Layout) -> None:
    named = by_name(layout)
    expected = views.by_name(layout, arena(layout.arena_bytes))
    assert list(named) == list(expected)
    assert [hash(name) for name in named] == [hash(name) for name in expected], "made where the thread has no lock"
    assert all(named[name] is tensor for name, tensor in zip(expected, named.values(), strict=True))
    assert objects(named) == objects(expected)
    for tensor, other in zip(named.values(), expected.values(), strict=True):
        assert type(tensor) is torch.Tensor
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (other.shape, other.stride(), other.dtype)
        assert as_bytes(tensor) == as_bytes(other)
        assert (tensor.requires_grad, tensor._is_view(), tensor.is_leaf) == (False, False, True)
        assert (tensor.device, tensor.is_inference()) == (torch.device("cpu"), False)
        assert tensor.untyped_storage().nbytes() == other.untyped_storage().nbytes()


def test_two_places_that_read_the_same_are_not_filled_in() -> None:
    """engine/begun.py goes on with views.by_name then, which says why."""
    layout = Layout(
        identity=IDENTITY,
        arena_bytes=512,
        segments=[Segment(0, 512)],
        storages=[Storage(0, 1)],
        tensors=[TensorView(0, 0, (1,), (1,), "uint8", parameter=True, cls=PARAMETER)],
        bindings=[Binding("a", "b.c", "parameter", 0), Binding("a.b", "c", "parameter", 0)],
    )
    descriptor = in_memory(512)
    ahead = made_ahead(layout, descriptor)
    named: dict[str, Any] = {}
    assert not ahead.fill(named)
    assert named == {}
    assert ahead.document() == layout.to_bytes()
    os.close(ahead.descriptor())
    os.close(descriptor)


def test_only_an_empty_dictionary_is_filled_and_once() -> None:
    layout = plain(3, IDENTITY)
    descriptor = in_memory(layout.arena_bytes)
    ahead, named = made_ahead(layout, descriptor), {"a": 1}
    os.close(descriptor)
    with pytest.raises(ValueError, match="an empty dictionary is wanted"):
        ahead.fill(named)
    named.clear()
    assert ahead.fill(named)
    assert len(named) == 3
    assert not ahead.fill({})
    assert ahead.document() == b""
    assert ahead.descriptor() == -1


def test_what_was_made_ahead_and_dropped_leaves_no_memory_behind() -> None:
    """Python's arenas are of memory that the thread mapped; they go as others do, and so does what is left of it."""
    layout = plain(2000, IDENTITY)
    for number in range(60):
        if number == 10:
            before = resident_kib()
        by_name(layout)
    assert resident_kib() - before < 4096


def mapped(name: str) -> int:
    with open("/proc/self/maps") as file:
        return sum(name in line for line in file)


def test_the_mapping_goes_with_the_last_tensor_or_with_what_nobody_took() -> None:
    layout = plain(3, IDENTITY)
    descriptor = in_memory(layout.arena_bytes)
    gc.collect()
    before = mapped("memfd:ahead")
    ahead = made_ahead(layout, descriptor)
    assert mapped("memfd:ahead") == before + 1
    del ahead
    assert mapped("memfd:ahead") == before
    named: dict[str, Any] = {}
    ahead = made_ahead(layout, descriptor)
    os.close(descriptor)
    assert ahead.fill(named)
    del ahead
    last = named["m1.w"]
    del named
    gc.collect()
    assert mapped("memfd:ahead") == before + 1
    assert last.sum() is not None
    del last
    gc.collect()
    assert mapped("memfd:ahead") == before


def test_waiting_for_torch_ends_when_nobody_wants_it_any_more() -> None:
    layout = plain(3, IDENTITY)
    descriptor = in_memory(layout.arena_bytes)
    ahead = taken(layout, descriptor)
    os.close(descriptor)
    thread = threading.Thread(target=ahead.make, args=("/no/such/libtorch_cpu.so", "/no/such/libtorch_python.so"))
    thread.start()
    ahead.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert not ahead.fill({})


def test_a_torch_that_lacks_a_function_is_told() -> None:
    layout = plain(3, IDENTITY)
    descriptor = in_memory(layout.arena_bytes)
    ahead = taken(layout, descriptor)
    os.close(descriptor)
    cpu, python = map(str, torch_libraries())
    with pytest.raises(RuntimeError, match="has no aoti_torch"):
        ahead.make("libc.so.6", python)
    with pytest.raises(RuntimeError, match="has no _Z16THPVariable_Wrap"):
        ahead.make(cpu, cpu)
    assert not ahead.fill({})
    assert ahead.make(cpu, python)
    assert ahead.fill({})


def test_nothing_is_made_of_what_was_not_taken() -> None:
    cpu, python = map(str, torch_libraries())
    ahead = Ahead(b"{}")
    with pytest.raises(RuntimeError, match="nothing was taken"):
        ahead.make(cpu, python)
    assert not ahead.fill({})


def test_what_is_made_is_old_to_the_collector_which_finds_its_cycles_later() -> None:
    from flashboot_agent.engine.collector import collector_paused

    class Node:
        pass

    gc.collect()
    with collector_paused():
        node: Any = Node()
        node.self = node
        assert not gc.isenabled()
    assert gc.isenabled()
    assert any(each is node for each in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0
    del node
    gc.collect(1)
    assert any(isinstance(each, Node) for each in gc.get_objects())
    gc.collect()
    assert not any(isinstance(each, Node) for each in gc.get_objects())


def test_what_a_program_froze_stays_frozen() -> None:
    from flashboot_agent.engine.collector import collector_paused

    gc.freeze()
    try:
        with collector_paused():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
