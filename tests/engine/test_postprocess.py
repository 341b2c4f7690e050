"""What a load leaves beside bytes, on small modules: seen by two snapshots, and made on a model that ran no load."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch
from torch import nn

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.engine import marks, rebind, shadow, walk
from flashboot_agent.engine.mapping import as_tensor, map_arena
from flashboot_agent.engine.pack import Packing
from flashboot_agent.engine.plan import Plan, plan
from tests.engine import trios
from tests.engine.test_pack import arena


class Method:
    """Like a quantisation method of SGLang: it changes itself in the load."""

    def __init__(self) -> None:
        self.block = True
        self.sizes = [128, 128]
        self.cache = {"a": 1}


class Config:
    def __init__(self, bias: nn.Parameter) -> None:
        self.correction_bias = bias


class Special(nn.Parameter):  # type: ignore[misc] # torch is not looked into
    """A parameter class like SGLang's."""


class Layer(nn.Module):  # type: ignore[misc] # torch is not looked into
    def __init__(self) -> None:
        super().__init__()
        self.weight = Special(torch.ones(4, 4))
        self.weight.weight_loader = as_tensor
        self.scale = nn.Parameter(torch.ones(2), requires_grad=False)
        self.scale.format_ue8m0 = False
        self.unpacked = nn.Parameter(torch.ones(3))
        self.input_scale = nn.Parameter(torch.ones(1))
        self.register_parameter("never", None)
        self.quant_method = Method()
        self.w_kc: Any = None
        self.ready: Any = False
        self.bias = nn.Parameter(torch.zeros(4))
        self.topk_config = Config(self.bias)

    def load(self) -> None:
        self.weight.data.copy_(torch.arange(16.0).view(4, 4))
        old = self.weight
        self.weight = nn.Parameter(old.detach().t().contiguous().t(), requires_grad=False)
        self.weight.__dict__ = old.__dict__
        self.scale.format_ue8m0 = True
        del self.unpacked
        del self.never
        self.input_scale = None
        self.w_kc = self.weight.detach()[1:3] * 2
        self.w_view = self.weight.detach()[1:3]
        self.none = torch.empty(0)
        self.ready = 1
        self.extra = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)
        self.quant_method.block = False
        self.bias.data.fill_(3.0)


def loaded(change: Any = Layer.load) -> tuple[Layer, Plan]:
    torch.manual_seed(1)
    model = Layer()
    before = marks.marks(model), marks.names(model)
    change(model)
    stamped = marks.stamped(before[0], marks.marks(model))
    deleted = marks.deleted(before[1], marks.names(model))
    return model, plan(walk.tensors(model), {"model": "small"}, stamped, None, deleted)


def empty() -> Layer:
    with torch.device("meta"):
        return Layer()


def attached(planned: Plan) -> tuple[Layer, Any]:
    descriptor, nbytes = arena(planned)
    Packing(planned).move_to(os.dup(descriptor), nbytes)
    base = as_tensor(map_arena(descriptor, nbytes, writable=False))
    os.close(descriptor)
    model = empty()
    shadow.as_loaded(model, planned.layout)
    rebind.install(model, planned.layout, base)
    rebind.verify(model, planned.layout, base)
    return model, base


def test_a_model_that_ran_no_load_is_as_the_load_would_have_left_it() -> None:
    plain, _ = loaded()
    seeded, planned = loaded()
    model, _ = attached(planned)
    assert trios.differences(plain, seeded, planned.layout) == []
    assert trios.differences(plain, model, planned.layout) == []
    assert type(model.weight) is nn.Parameter
    assert model.weight.weight_loader is as_tensor
    assert model.scale.format_ue8m0 is True
    assert not hasattr(model, "unpacked")
    assert "never" not in model._parameters
    assert model.input_scale is None
    assert model.quant_method.block is False
    assert model.topk_config.correction_bias is model.bias
    assert (model.ready, type(model.ready)) == (1, int)


def test_what_the_load_made_is_derived_unless_it_is_a_view_of_shared_bytes() -> None:
    _, planned = loaded()
    layout = planned.layout
    kinds = {each.attribute: layout.storages[layout.tensors[each.tensor].storage].kind for each in layout.bindings}
    assert kinds["w_kc"] == kinds["none"] == "derived"
    assert kinds["w_view"] == kinds["weight"] == kinds["topk_config.correction_bias"] == "shared"
    one, base = attached(planned)
    one.w_kc.zero_()
    assert one.w_view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda layer: setattr(layer, "thing", Method()), "thing: .* an object <.*Method>"),
        (lambda layer: layer.quant_method.sizes.append(1), r"quant_method.sizes: .* object <.*list \[128, 128, 1\]>"),
        (lambda layer: layer.quant_method.cache.update(b=2), "quant_method.cache: "),
        (lambda layer: setattr(layer, "quant_method", Config(layer.bias)), "quant_method: .* an object <.*Config>"),
    ],
)
def test_an_object_that_only_a_load_makes_is_refused_by_name(change: Any, says: str) -> None:
    _, planned = loaded(change)
    with pytest.raises(UnsupportedModel, match=says):
        shadow.as_loaded(empty(), planned.layout)


def test_a_parameter_of_a_class_that_nothing_here_has_is_refused() -> None:
    class Foreign(nn.Parameter):  # type: ignore[misc] # torch is not looked into
        pass

    _, planned = loaded(lambda layer: layer.register_parameter("scale", Foreign(torch.ones(2))))
    with pytest.raises(UnsupportedModel, match=r"scale: .* parameter .*Foreign"):
        shadow.as_loaded(empty(), planned.layout)


def test_metadata_that_is_no_scalar_or_on_no_parameter_is_refused_by_name() -> None:
    def rows(layer: Layer) -> None:
        layer.scale.rows = torch.ones(2)

    _, planned = loaded(rows)
    with pytest.raises(UnsupportedModel, match="left rows on the parameter scale"):
        shadow.as_loaded(empty(), planned.layout)

    def on_an_attribute(layer: Layer) -> None:
        layer.w_kc = torch.ones(2)
        layer.w_kc.format_ue8m0 = True

    with pytest.raises(UnsupportedModel, match="w_kc carries format_ue8m0"):
        loaded(on_an_attribute)


def test_scalars_that_the_load_adds_to_a_parameter_travel() -> None:
    def packed(layer: Layer) -> None:
        layer.scale.is_shuffled = True

    _, planned = loaded(packed)
    model, _ = attached(planned)
    assert model.scale.is_shuffled is True


def test_marks_of_a_place_that_is_not_there_are_refused() -> None:
    _, planned = loaded()
    model = empty()
    del model.quant_method
    with pytest.raises(UnsupportedModel, match=re.escape("quant_method.block: ")):
        shadow.as_loaded(model, planned.layout)


@pytest.mark.parametrize(
    ("scalars", "deleted", "says"),
    [
        ({"": {"training.y": 2}}, {}, "training.y: "),
        ({"": {"weight": "<parameter >"}}, {}, "weight: "),
        ({"": {"T_destination.__name__": "x"}}, {}, "T_destination.__name__: "),
        ({}, {"": ["nothing.here"]}, "nothing.here: "),
    ],
)
def test_a_layout_that_fits_no_model_is_refused_with_the_place(
    scalars: dict[str, Any], deleted: dict[str, Any], says: str
) -> None:
    layout = plan(walk.tensors(Layer()), {}, scalars, None, deleted).layout
    with pytest.raises(UnsupportedModel, match=re.escape(says)):
        shadow.as_loaded(empty(), layout)
