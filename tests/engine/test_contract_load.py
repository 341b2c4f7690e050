"""What the plug-in relies on of SGLang's load: when it runs, what it leaves, and what must not run twice."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.engine import marks, remake, walk
from flashboot_agent.engine.plan import READ_ONLY_BUFFERS
from tests.engine import runtime


def source_of(target: Any) -> str:
    return inspect.getsource(inspect.unwrap(target))


def in_order(text: str, *parts: str) -> bool:
    places = [text.index(part) for part in parts]
    return places == sorted(places)


def test_the_load_comes_before_the_barrier_the_kv_cache_and_the_graphs() -> None:
    """So a seed has committed, and an engine is attached, before any of these."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.model_runner import ModelRunner

    load = source_of(ModelRunner.load_model)
    assert in_order(load, "load_model_with_memory_saver(", "dist_barrier_after_load(")
    assert "self.startup_weight_load is None" in load
    start = source_of(Scheduler.init_model_worker)
    order = ("init_tp_model_worker()", "init_memory_pools()", "init_all_attention_backends()", "init_all_cuda_graphs()")
    assert in_order(start, *order)


def test_post_processing_is_the_second_half_of_what_the_seed_watches() -> None:
    from sglang.srt.model_loader import loader

    text = source_of(loader.DefaultModelLoader.load_weights_and_postprocess)
    assert in_order(text, "load_weights_only(", "postprocess_weights(")
    assert 'getattr(module, "quant_method", None)' in source_of(loader._modules_with_quant_method)
    assert "quant_method" in walk.METHODS


def test_given_tensors_are_loaded_and_post_processed_as_files_are() -> None:
    """engine/feed.py gives them in place of the files', and post-processes one part of a model after the other."""
    from sglang.srt.model_loader import loader

    assert "self._get_all_weights(model_config, model)" in source_of(loader.DefaultModelLoader.load_model)
    text = source_of(loader.DefaultModelLoader.postprocess_weights)
    loop = "for module, quant_method in _modules_with_quant_method(model):"
    assert in_order(text, loop, "device_loading_context(", "quant_method.process_weights_after_loading(module)")
    assert text.count("(module") == 2


def test_a_second_load_would_not_be_harmless() -> None:
    """Why an attaching engine never calls load_weights or post_load_weights."""
    from sglang.srt.layers.attention.dsv4.compressor import Compressor
    from sglang.srt.utils import bind_or_assign

    assert "assert not self.ape_converted" in source_of(Compressor.apply_ape_hotfix)
    assert "target.copy_(source)" in source_of(bind_or_assign)


def test_rotary_tables_are_kept_per_process_and_never_written_by_the_forward_pass() -> None:
    from sglang.kernels.ops.attention.dsv4.rope import precompute_freqs_cis

    assert precompute_freqs_cis.cache_info().maxsize == 2
    assert sorted(READ_ONLY_BUFFERS) == ["cos_sin_cache", "freqs_cis"]


@pytest.mark.parametrize("place", remake.REMAKERS)
def test_objects_that_are_made_anew_are_what_the_load_makes(
    place: tuple[str, str, str], checkpoints: dict[str, Path]
) -> None:
    cases = {"Qwen3MoeForCausalLM": "qwen3_moe"}
    cls, module, attribute = place
    _, model = runtime.load(runtime.publish(checkpoints[cases[cls]]))
    theirs = getattr(model.get_submodule(module), attribute)
    mark = marks.mark(theirs)
    assert isinstance(mark, str)
    assert remake.remake(model, module, attribute, mark)
    ours = getattr(model.get_submodule(module), attribute)
    assert ours is not theirs
    assert ours.value.keys() == theirs.value.keys()
    for number, tensors in ours.value.items():
        assert [tensor.data_ptr() for tensor in tensors] == [tensor.data_ptr() for tensor in theirs.value[number]]
