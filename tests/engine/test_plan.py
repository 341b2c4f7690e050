"""The layout planner on small modules: ties, shared storages, private buffers, refusals."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine import rebind, walk
from flashboot_agent.engine.mapping import as_tensor, map_arena
from flashboot_agent.engine.pack import Packing
from flashboot_agent.engine.plan import PAGE, Plan, plan
from flashboot_agent.engine.tensors import plan_tensors

IDENTITY = {"model": "small"}


class Odd(nn.Module):  # type: ignore[misc] # torch is not looked into
    """One of everything that a layout must carry."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5, bias=False, dtype=torch.bfloat16)
        self.tied = nn.Linear(3, 5, bias=False, dtype=torch.bfloat16)
        self.tied.weight = self.first.weight
        self.register_buffer("kept", torch.arange(7, dtype=torch.int64))
        self.register_buffer("passing", torch.ones(2), persistent=False)
        self.register_buffer("nothing", None)
        self.fused = nn.Parameter(torch.randn(4, 6), requires_grad=False)
        self.part = self.fused.detach()[1:3, ::2]  # another object on the same storage
        self.empty = torch.empty(0)
        self.first.weight.note = "kept"


def odd() -> Odd:
    torch.manual_seed(1)
    return Odd()


def on_meta() -> Odd:
    with torch.device("meta"):
        return Odd()


def packed(model: nn.Module) -> tuple[Plan, Any]:
    """The plan, and read-only memory that has everything where it says."""
    planned = plan(walk.tensors(model), IDENTITY, {})
    nbytes = planned.layout.arena_bytes
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, nbytes)
    Packing(planned).move_to(os.dup(descriptor), nbytes)
    base = as_tensor(map_arena(descriptor, nbytes, writable=False))
    os.close(descriptor)
    return planned, base


def test_storages_are_aligned_disjoint_and_grouped() -> None:
    layout = plan(walk.tensors(odd()), IDENTITY, {}).layout
    assert all(storage.offset % 512 == 0 for storage in layout.storages)
    assert len(layout.storages) == 5  # first+tied, kept, passing, fused+part, empty
    assert len(layout.tensors) == 6
    assert len(layout.bindings) == 7
    kinds = {
        binding.attribute: layout.storages[layout.tensors[binding.tensor].storage].kind for binding in layout.bindings
    }
    assert kinds == {
        "weight": "shared",
        "fused": "shared",
        "part": "shared",
        "kept": "runtime",
        "passing": "runtime",
        "empty": "runtime",
    }


def test_the_same_model_gives_the_same_document() -> None:
    assert (
        plan(walk.tensors(odd()), IDENTITY, {}).layout.to_bytes()
        == plan(walk.tensors(odd()), IDENTITY, {}).layout.to_bytes()
    )


def test_a_model_without_elements_has_an_arena_of_a_page() -> None:
    model = nn.Module()
    model.register_buffer("empty", torch.empty(0))
    layout = plan(walk.tensors(model), IDENTITY, {}).layout
    assert (layout.arena_bytes, len(layout.segments)) == (PAGE, 1)


def test_what_a_layout_can_not_carry_is_refused() -> None:
    model = nn.Module()
    model.register_buffer("odd", torch.zeros(2, dtype=torch.bits8))
    with pytest.raises(UnsupportedModel, match="dtype 'bits8' is not among"):
        plan(walk.tensors(model), IDENTITY, {})


class Wrapper(torch.Tensor):  # type: ignore[misc] # torch is not looked into
    """As quantisation packages have them: its bytes are those of tensors inside."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = [each.inner if isinstance(each, cls) else each for each in args]
        return cls(func(*inner, **(kwargs or {})))


PAIRS = torch.tensor([1 + 2j, 3 - 4j])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        pytest.param(PAIRS.conj, "conjugated or negated view", id="conjugated"),
        pytest.param(lambda: PAIRS.conj().imag, "conjugated or negated view", id="negated"),
        pytest.param(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "no dense", id="nested"),
        pytest.param(lambda: torch.ones(2).to_sparse(), "no dense", id="sparse"),
        pytest.param(lambda: nn.Parameter(Wrapper(torch.ones(2))), "no memory of its own", id="wrapper"),
    ],
)
def test_a_tensor_whose_values_are_not_its_bytes_is_refused(tensor: Callable[[], Any], why: str) -> None:
    model = nn.Module()
    model.odd = tensor()
    with pytest.raises(UnsupportedModel, match=f"odd .*{why}"):
        plan(walk.tensors(model), IDENTITY, {})
    with pytest.raises(UnsupportedModel, match=f"odd .*{why}"):
        plan_tensors({"odd": tensor()}, IDENTITY)


def test_install_and_repoint_end_with_the_same_structure() -> None:
    original, seeded = odd(), odd()
    planned, base = packed(seeded)
    rebind.repoint(planned.tensors, planned.layout, base)
    rebind.verify(seeded, planned.layout, base)
    attached = on_meta()
    rebind.install(attached, planned.layout, base)
    rebind.verify(attached, planned.layout, base)
    for one, two, three in zip(*(walk.tensors(model) for model in (original, seeded, attached)), strict=True):
        assert torch.equal(one.tensor, two.tensor), str(one)
        assert torch.equal(one.tensor, three.tensor), str(one)
        assert one.tensor.stride() == two.tensor.stride() == three.tensor.stride()
    assert attached.first.weight is attached.tied.weight
    assert attached.first.weight.note == "kept"
    assert attached.part.untyped_storage().data_ptr() == attached.fused.untyped_storage().data_ptr()
    assert "passing" in attached._non_persistent_buffers_set


def test_private_buffers_can_be_written_and_shared_ones_are_not_copied() -> None:
    planned, base = packed(odd())
    one, two = on_meta(), on_meta()
    for model in (one, two):
        rebind.install(model, planned.layout, base)
    one.kept.add_(1)
    assert torch.equal(two.kept, torch.arange(7))
    assert one.fused.data_ptr() == two.fused.data_ptr()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda model: model.register_buffer("more", torch.ones(1)), "more is in this model but not in the seed's"),
        (lambda model: model._parameters.pop("fused"), "fused is a parameter of the seed's model"),
        (lambda model: setattr(model, "first", None), "has a module 'first'"),
        (lambda model: model.__dict__.update(part=torch.ones(2)), "outside of the meta device"),
    ],
)
def test_a_model_that_differs_from_the_layout_is_refused_unchanged(change: Any, says: str) -> None:
    planned, base = packed(odd())
    model = on_meta()
    change(model)
    before = [id(item.tensor) for item in walk.tensors(model)]
    with pytest.raises(UnsupportedModel, match=says):
        rebind.install(model, planned.layout, base)
    assert [id(item.tensor) for item in walk.tensors(model)] == before


def test_verify_finds_a_tensor_that_was_left_on_meta() -> None:
    planned, base = packed(odd())
    model = on_meta()
    rebind.install(model, planned.layout, base)
    model.part = torch.empty_like(model.part, device="meta")
    with pytest.raises(UnsupportedModel, match=r"part is still on the meta device"):
        rebind.verify(model, planned.layout, base)


def test_verify_finds_a_tensor_outside_of_the_arena_and_a_lost_tie() -> None:
    planned, base = packed(odd())
    model = on_meta()
    rebind.install(model, planned.layout, base)
    fused = model.fused
    model._parameters["fused"] = nn.Parameter(fused.clone(), requires_grad=False)
    with pytest.raises(UnsupportedModel, match=r"fused .* lies outside of the arena"):
        rebind.verify(model, planned.layout, base)
    model._parameters["fused"] = fused
    model.tied._parameters["weight"] = nn.Parameter(model.first.weight.detach())
    with pytest.raises(UnsupportedModel, match=r"tied\.weight is tied to first\.weight in the seed's model"):
        rebind.verify(model, planned.layout, base)


def test_verify_finds_another_class_dtype_shape_and_place() -> None:
    planned, base = packed(odd())
    model = on_meta()
    rebind.install(model, planned.layout, base)
    part, fused = model.part, model.fused
    for wrong in (part[:1], part.view(torch.int32), part.t(), nn.Parameter(part, requires_grad=False)):
        model.__dict__["part"] = wrong
        with pytest.raises(UnsupportedModel, match=r"part is .*, the layout says \(\(2, 3\), \(6, 2\), 'float32'"):
            rebind.verify(model, planned.layout, base)
    model.__dict__["part"] = fused.detach()[0:2, ::2]
    with pytest.raises(UnsupportedModel, match=r"part lies at byte \d+ of the arena, not"):
        rebind.verify(model, planned.layout, base)
    model.__dict__["part"] = part
    model.kept = base[:56].view(torch.int64)
    with pytest.raises(UnsupportedModel, match=r"kept \(runtime\) lies inside of the arena"):
        rebind.verify(model, planned.layout, base)


def test_hidden_tensors_are_found_in_lists_objects_and_slots() -> None:
    class Holder:
        __slots__ = ("inside",)
        inside: Any

    model = on_meta()
    holder = Holder()
    holder.inside = {"table": [torch.empty(3, device="meta")]}
    model.helper = holder
    with pytest.raises(UnsupportedModel, match=r"helper\.inside\['table'\]\[0\]"):
        walk.require_none_hidden(model)


def test_a_hidden_tensor_that_only_the_load_made_is_found() -> None:
    shadow, loaded = on_meta(), odd()
    shadow.groups = loaded.groups = [torch.ones(1)]  # the process's own: both have it
    walk.require_none_hidden(shadow, loaded)
    loaded.cache = {"scales": torch.ones(2)}
    with pytest.raises(UnsupportedModel, match=r"cache\['scales'\]"):
        walk.require_none_hidden(shadow, loaded)


def test_tensors_that_are_no_dense_host_memory_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="meta"):
        plan(walk.tensors(on_meta()), IDENTITY, {})
    model = nn.Module()
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedModel, match="no dense tensor"):
        plan(walk.tensors(model), IDENTITY, {})
