"""From a trainer's tensors to an arena's bytes: the map and the converter make what SGLang's loader makes.

In several ranks: test_ranks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flashboot_agent.core.errors import BadRequest, IdentityMismatch, SeedFailed, UnsupportedModel
from flashboot_agent.delta.permutation import PermutationMap, Tensor
from flashboot_agent.engine import seed, walk
from flashboot_agent.engine.feed import Feed, described
from flashboot_agent.engine.identity import identity_of
from flashboot_agent.engine.plan import plan
from flashboot_agent.engine.settings import EngineSettings
from flashboot_agent.engine.trace import trace
from flashboot_agent.wire.layout import Layout
from tests.engine import runtime, updates


class Seeded:
    """A model as a seed leaves it: its layout, its arena, and what loads more of its kind."""

    def __init__(self, folder: Path) -> None:
        from sglang.srt.configs.device_config import DeviceConfig
        from sglang.srt.configs.load_config import LoadConfig

        self.folder = folder
        config, device, load = runtime.publish(folder), DeviceConfig("cpu", 0), LoadConfig()
        identity = identity_of(EngineSettings(model="m", revision="1"), config)
        self.feed = Feed(config, device, load, identity)
        self.other = Feed(config, device, load, identity | {"tp_rank": "1"})
        model, left = seed._load(config, device, load)
        self.layout = plan(walk.tensors(model), identity, left.stamped, None, left.deleted).layout
        self.base = updates.image(self.layout, bytes(self.layout.arena_bytes), model)
        self.values = updates.checkpoint(folder)
        self.tensors = described(self.values)

    def trace(self, feed: Feed | None = None) -> PermutationMap:
        return trace(self.layout, self.tensors, lambda tensor: self.values[tensor.name], feed or self.feed)

    def converted(self, values: updates.Values, feed: Feed | None = None) -> bytes:
        return updates.converted(self.layout, self.base, self.tensors, values, feed or self.feed)


@pytest.fixture(scope="module", autouse=True)
def _tables_of_its_own() -> Iterator[None]:
    with runtime.own_tables():
        yield


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Block FP8 takes SGLang's branch for GPUs, as in test_block_fp8.py."""
    from sglang.srt.layers.quantization import fp8

    return lambda name: monkeypatch.setattr(fp8, "_is_cpu", not name.endswith("fp8"))


@pytest.mark.parametrize("name", ["llama_tied", "qwen3_moe", "deepseek_v3", "qwen3_fp8"])
def test_the_map_whole_or_in_shards_and_the_converter_make_what_the_loader_makes(
    name: str, checkpoints: dict[str, Path], hooked: None, as_on_a_gpu: Callable[[str], None]
) -> None:
    as_on_a_gpu(name)
    seeded = Seeded(checkpoints[name])
    assert list(updates.differences(seeded.layout, seeded.base, seeded.folder, seeded.feed)) == []


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        pytest.param("deepseek_v3_fp8", "model.layers.0.self_attn.w_kc", id="requantised"),
        pytest.param("deepseek_v4", "model.layers.0.self_attn.compressor.norm.weight", id="cast"),
    ],
)
def test_what_is_no_copy_has_no_map_by_name_and_is_converted(
    name: str, tensor: str, checkpoints: dict[str, Path], hooked: None, as_on_a_gpu: Callable[[str], None]
) -> None:
    as_on_a_gpu(name)
    seeded = Seeded(checkpoints[name])
    with pytest.raises(UnsupportedModel, match=f"{tensor} is derived, cast or repacked by the load; .* the converter"):
        seeded.trace()
    new = updates.next_version(seeded.values)
    wanted = updates.image(seeded.layout, seeded.base, seeded.feed.load(new.items()))
    assert wanted != seeded.base
    assert seeded.converted(new) == wanted


@pytest.fixture(scope="module")
def llama(checkpoints: dict[str, Path], hooked: None) -> Seeded:
    return Seeded(checkpoints["llama"])


def test_another_ranks_process_is_refused(llama: Seeded) -> None:
    with pytest.raises(IdentityMismatch, match="tp_rank"):
        llama.trace(llama.other)
    with pytest.raises(IdentityMismatch, match="tp_rank"):
        llama.converted(llama.values, llama.other)


def test_a_tensor_that_is_not_as_described_is_refused_by_name(llama: Seeded) -> None:
    name = "model.layers.1.self_attn.q_proj.weight"
    wrong = llama.values | {name: llama.values[name].float()}
    with pytest.raises(BadRequest, match=f"{name}: .*float32"):
        llama.converted(wrong)


def test_a_model_to_convert_with_has_rotary_tables_of_its_own(llama: Seeded) -> None:
    """The converter lets go of memory, and SGLang shares these among all models of a process."""
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT

    before = dict(_ROPE_DICT)
    mine = llama.feed.empty().model.layers[0].self_attn.rotary_emb
    assert before == _ROPE_DICT
    assert before
    assert all(each is not mine for each in before.values())


# Loads that no model of ours does ------------------------------------------------------------------------------------


class Toy(nn.Module):  # type: ignore[misc] # torch is not looked into
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False, dtype=torch.bfloat16) for _ in range(2))
        self.scale = nn.Parameter(torch.ones(1))


class ToyFeed(Feed):
    """A load whose scale is a constant for weights that are no numbers; or one that reaches back."""

    def __init__(self, trick: str = "") -> None:
        self.trick = trick

    def require(self, layout: Layout) -> None:
        pass

    def load(self, weights: Iterable[tuple[str, Any]]) -> Any:
        model = self.empty()
        self.load_into(model, weights)
        return model

    def empty(self) -> Any:
        return Toy()

    def load_into(self, model: Any, weights: Iterable[tuple[str, Any]]) -> None:
        for name, value in weights:
            model.get_parameter(name).data.copy_(value)
            if self.trick == "reaches back" and name.startswith("layers.1"):
                model.layers[0].weight.data.copy_(value)
            if self.trick == "derives" and name == "layers.0.weight":
                top = value.float().abs().max()
                model.scale.data.fill_(top if 1e-3 < top < 1e3 else 1.0)

    def postprocess(self, root: Any, done: set[int]) -> None:
        pass


@pytest.fixture
def toy() -> tuple[Layout, list[Tensor], updates.Values]:
    torch.manual_seed(1)
    model = Toy()
    values = {name: value.detach() for name, value in model.named_parameters() if name != "scale"}
    return plan(walk.tensors(model), {}, {}).layout, described(values), values


def test_what_only_looks_like_a_constant_is_refused_by_name(toy: tuple[Layout, list[Tensor], updates.Values]) -> None:
    layout, tensors, values = toy
    assert trace(layout, tensors, lambda tensor: values[tensor.name], ToyFeed()).needed == values.keys()
    with pytest.raises(UnsupportedModel, match="scale depends on values, not on places alone"):
        trace(layout, tensors, lambda tensor: values[tensor.name], ToyFeed("derives"))


def test_a_loader_that_reaches_back_into_a_unit_that_was_given_fails(
    toy: tuple[Layout, list[Tensor], updates.Values],
) -> None:
    layout, tensors, values = toy
    base = bytes(layout.arena_bytes)
    updates.converted(layout, base, tensors, values, ToyFeed())
    with pytest.raises(RuntimeError, match="size"):
        updates.converted(layout, base, tensors, values, ToyFeed("reaches back"))


def test_another_model_than_the_arenas_is_refused_by_name(llama: Seeded) -> None:
    torch_values = {name: value.detach() for name, value in Toy().named_parameters()}
    with pytest.raises(UnsupportedModel, match="is in the arena and not in the model of these tensors"):
        updates.converted(llama.layout, llama.base, described(torch_values), torch_values, ToyFeed())


def test_what_sglang_can_not_load_is_told(llama: Seeded) -> None:
    short = {name: value for name, value in llama.values.items() if name == "model.norm.weight"}
    short = {name: torch.ones(3, dtype=value.dtype) for name, value in short.items()}
    with pytest.raises(SeedFailed, match="SGLang could not load the tensors given"):
        llama.feed.load(short.items())
