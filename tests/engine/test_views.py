"""Views over an arena: both ways make the same tensors, keep the memory alive, and leave nothing after an error."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashboot_agent import _native
from flashboot_agent.core.errors import BadRequest
from flashboot_agent.engine import views
from flashboot_agent.engine.installed import torch_libraries
from flashboot_agent.engine.mapping import as_tensor
from flashboot_agent.wire.layout import Layout
from flashboot_agent.wire.layout_entries import Binding, Segment, Storage, TensorView
from tests.layouts import small

LAYOUT = small()
PLAIN = "torch.Tensor"


class Memory(mmap.mmap):
    """One that can be watched."""


@pytest.fixture(params=["at once", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "one by one":
        monkeypatch.setattr(views, "torch_functions", lambda: None)
    else:
        assert views.torch_functions() is not None, "without its functions the fast way is not tested"
    return str(request.param)


def arena(nbytes: int) -> Any:
    """Some bytes, read-only, each different from its neighbours."""
    with mmap.mmap(-1, nbytes) as memory:
        data = torch.arange(nbytes, dtype=torch.int64).mul_(37).to(torch.uint8)
        memory[:] = data.numpy().tobytes()
        copy = mmap.mmap(-1, nbytes)
        copy[:] = memory[:]
    return as_tensor(copy)


def expected(view: TensorView, storage: Storage, base: Any) -> Any:
    part = base[storage.offset : storage.offset + storage.bytes].clone()
    dtype = getattr(torch, view.dtype)
    return torch.empty(0, dtype=dtype).set_(part.untyped_storage(), view.offset, view.shape, view.stride)


def every_dtype() -> Layout:
    """A tensor of each dtype, on one storage each and at an odd place of it."""
    dtypes = list(_native.LAYOUT_DTYPES)
    return Layout(
        identity={},
        arena_bytes=len(dtypes) * 512,
        segments=[Segment(0, len(dtypes) * 512)],
        storages=[Storage(n * 512, 512, "derived" if n % 5 == 4 else "shared") for n in range(len(dtypes))],
        tensors=[TensorView(n, 3, (2, 5), (7, 1), name, parameter=False, cls=PLAIN) for n, name in enumerate(dtypes)],
        bindings=[Binding("by", name, "attribute", n) for n, name in enumerate(dtypes)],
    )


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("make", [small, every_dtype])
def test_every_tensor_is_what_the_layout_says(way: str, make: Callable[[], Layout]) -> None:
    layout = make()
    base = arena(layout.arena_bytes)
    begin, end = base.data_ptr(), base.data_ptr() + base.numel()
    made = views.tensors_of(layout, base)
    assert len(made) == len(layout.tensors)
    for tensor, view in zip(made, layout.tensors, strict=True):
        storage = layout.storages[view.storage]
        wanted = expected(view, storage, base)
        assert type(tensor) is torch.Tensor
        assert (tensor.shape, tensor.stride(), tensor.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
        assert as_bytes(tensor) == as_bytes(wanted)
        assert not tensor.requires_grad
        assert not tensor._is_view()
        assert tensor.is_leaf
        if tensor.numel():
            shared = storage.kind == "shared"
            assert (begin <= tensor.data_ptr() < end) == shared
            assert (tensor.untyped_storage().data_ptr() == begin) == shared
            assert tensor.untyped_storage().nbytes() == (base.numel() if shared else storage.bytes)


def as_bytes(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def test_private_storages_are_copied_once_each(way: str) -> None:
    tensors = [
        TensorView(0, 0, (4,), (1,), "float32", parameter=False, cls=PLAIN),
        TensorView(0, 1, (2,), (1,), "float32", parameter=False, cls=PLAIN),
    ]
    bindings = [Binding("", name, "buffer", number) for number, name in enumerate("ab")]
    layout = small(storages=[Storage(512, 16, "runtime")], tensors=tensors, bindings=bindings)
    one, two = (views.by_name(layout, arena(layout.arena_bytes)) for _ in range(2))
    one["b"].fill_(1)
    assert one["a"][1:3].tolist() == [1, 1]
    assert not torch.equal(one["a"], two["a"])


def test_an_arena_that_is_smaller_than_its_layout_is_not_looked_at(way: str) -> None:
    with pytest.raises(BadRequest, match=f"an arena of {LAYOUT.arena_bytes} bytes; here are 4096"):
        views.tensors_of(LAYOUT, arena(4096))


def test_ties_are_one_object_under_several_names(way: str) -> None:
    named = views.by_name(LAYOUT, arena(LAYOUT.arena_bytes))
    assert named["embed.weight"] is named["head.weight"]
    assert list(named) == [f"{b.module}.{b.attribute}" if b.module else b.attribute for b in LAYOUT.bindings]


@pytest.mark.parametrize("name", ["a", "a.b", "a.b.c", "a..b", ".a", "a.", ".", "..", "a.b.", "ä.ö"])
def test_names_are_taken_apart_and_put_together(name: str) -> None:
    view = TensorView(0, 0, (1,), (1,), "uint8", parameter=False, cls=PLAIN)
    place = views.place_of(name)
    layout = small(storages=[Storage(0, 1)], tensors=[view], bindings=[Binding(*place, "attribute", 0)])
    assert list(views.by_name(layout, arena(layout.arena_bytes))) == [name]


def test_the_memory_lives_as_long_as_its_last_tensor(way: str) -> None:
    mapping = Memory(-1, LAYOUT.arena_bytes)
    gone = weakref.ref(mapping)
    made = views.tensors_of(LAYOUT, as_tensor(mapping))
    del mapping
    last = made[2]
    del made
    gc.collect()
    assert gone() is not None
    assert last.sum() == 0
    del last
    gc.collect()
    assert gone() is None


def test_a_view_that_torch_refuses_leaves_no_other() -> None:
    """The second base is sparse and has no storage: the first view is made, and must go again."""
    dtypes = ["uint8", "float32"]
    layout = small(
        storages=[Storage(0, 8)],
        tensors=[TensorView(0, 0, (2,), (1,), dtype, parameter=False, cls=PLAIN) for dtype in dtypes],
        bindings=[Binding("", dtype, "attribute", number) for number, dtype in enumerate(dtypes)],
    )
    functions, aoti = views.torch_functions(), torch._C._aoti
    assert functions is not None
    mapping = Memory(-1, layout.arena_bytes)
    gone = weakref.ref(mapping)
    handles = aoti.unsafe_alloc_void_ptrs_from_tensors([as_tensor(mapping), torch.eye(2).to_sparse()])
    del mapping
    bases = dict(zip(dtypes, handles, strict=True))
    with pytest.raises(RuntimeError, match="could not make view 1 of 2"):
        functions.make_views(layout.table, [bases.get(dtype) for dtype in _native.LAYOUT_DTYPES], [])
    assert gone() is not None
    aoti.alloc_tensors_by_stealing_from_void_ptrs(handles)
    gc.collect()
    assert gone() is None


def test_bases_of_another_number_or_kind_are_refused() -> None:
    functions = views.torch_functions()
    assert functions is not None
    with pytest.raises(ValueError, match="a base per dtype"):
        functions.make_views(LAYOUT.table, [None], [])
    with pytest.raises(ValueError, match="PyCapsule"):
        functions.make_views(LAYOUT.table, [1] * len(_native.LAYOUT_DTYPES), [])


def test_the_choice_is_told_when_torch_lacks_a_function(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    views.torch_functions.cache_clear()
    monkeypatch.delattr(torch._C._aoti, "alloc_tensors_by_stealing_from_void_ptrs")
    try:
        with caplog.at_level("WARNING", "flashboot"):
            assert views.torch_functions() is None
            assert views.torch_functions() is None
        assert caplog.text.count("views are made one by one") == 1
        assert views.by_name(LAYOUT, arena(LAYOUT.arena_bytes)).keys()
    finally:
        views.torch_functions.cache_clear()


def test_a_torch_that_is_not_loaded_is_told() -> None:
    cpu = str(torch_libraries()[0])
    with pytest.raises(RuntimeError, match="is not loaded"):
        _native.Torch("/no/such/libtorch_cpu.so", cpu)
    with pytest.raises(RuntimeError, match="has no aoti_torch__reinterpret_tensor"):
        _native.Torch("libc.so.6", cpu)
    with pytest.raises(RuntimeError, match="has no _Z16THPVariable_WrapON2at10TensorBaseE"):
        _native.Torch(cpu, cpu)


def many(count: int) -> Layout:
    return Layout(
        identity={},
        arena_bytes=512 * count,
        segments=[Segment(0, 512 * count)],
        storages=[Storage(512 * n, 512) for n in range(count)],
        tensors=[TensorView(n, 1, (7, 9), (9, 1), "bfloat16", parameter=False, cls=PLAIN) for n in range(count)],
        bindings=[Binding(f"m{n}", "w", "attribute", n) for n in range(count)],
    )


def test_threads_that_make_and_drop_views_do_no_harm() -> None:
    """Handles are made without the GIL and freed by whoever is last."""
    layout = many(500)
    base = arena(layout.arena_bytes)
    wanted = as_bytes(views.tensors_of(layout, base)[499])
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            made = views.tensors_of(layout, base)
            made[0:498:2] = [None] * 249
            if as_bytes(made[499]) != wanted:
                wrong.append("other bytes")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_views_that_are_dropped_leave_no_memory_behind(way: str) -> None:
    layout = many(2000)
    base = arena(layout.arena_bytes)
    for _ in range(5):
        views.by_name(layout, base)
    before = resident_kib()
    for _ in range(50):
        views.by_name(layout, base)
    assert resident_kib() - before < 4096  # 100,000 views that stayed would have more than 20 MiB


def resident_kib() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def test_the_collector_is_as_it_was() -> None:
    base = arena(LAYOUT.arena_bytes)
    for on in (True, False):
        (gc.enable if on else gc.disable)()
        try:
            views.tensors_of(LAYOUT, base)
            assert gc.isenabled() is on
        finally:
            gc.enable()
