"""Every seam of SGLang 0.5.23 that the plug-in relies on, one by one: another version fails here and says where."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from flashboot_agent.engine import guard, plugin, support
from tests.engine import runtime


def source_of(target: Any) -> str:
    return inspect.getsource(inspect.unwrap(target))


def test_the_version_is_the_pinned_one() -> None:
    assert version("sglang") == support.SGLANG_VERSION == "0.5.23"


def test_the_entry_point_is_declared_and_points_at_register() -> None:
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    declared = project["project"]["entry-points"][GENERAL_PLUGINS_GROUP]
    module, _, attribute = declared["flashboot"].partition(":")
    assert module == plugin.__name__
    assert getattr(plugin, attribute) is plugin.register


def test_plugins_are_loaded_before_arguments_are_read_and_in_the_scheduler() -> None:
    import sglang.launch_server
    from sglang.srt.managers.scheduler import run_scheduler_process

    text = Path(sglang.launch_server.__file__).read_text()
    assert text.index("    load_plugins()") < text.index("prepare_server_args(sys.argv[1:])")
    assert "load_plugins()" in source_of(run_scheduler_process)


def test_what_a_plugin_raises_is_swallowed_unless_it_is_systemexit() -> None:
    from sglang.srt.plugins import load_plugins

    assert "except Exception:" in source_of(load_plugins)
    assert "BaseException" not in source_of(load_plugins)


def test_hooks_are_applied_once_and_reach_those_who_imported_the_name_before(hooked: None) -> None:
    from sglang.srt.model_executor.model_runner_components import load_model_utils, weight_updater
    from sglang.srt.model_loader import loader

    for module in (loader, load_model_utils, weight_updater):
        assert module.get_model_loader is loader.get_model_loader
        assert module.get_model_loader.__wrapped__.__module__ == loader.__name__
    plugin.verify()


def test_the_factory_and_the_loader_have_the_known_shape() -> None:
    from sglang.srt.model_loader.loader import BaseModelLoader, get_model_loader

    assert list(inspect.signature(get_model_loader).parameters) == ["load_config", "model_config"]
    parameters = inspect.signature(BaseModelLoader.load_model).parameters
    assert [name for name in parameters if name != "self"] == ["model_config", "device_config"]
    assert BaseModelLoader.preloaded_weights_bytes == 0
    assert BaseModelLoader.__abstractmethods__ == {"download_model", "load_model"}


def test_memory_is_sampled_where_the_hook_is_and_before_the_load() -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    assert "measure_pre_model_load_memory" in source_of(ModelRunner.init_torch_distributed)
    text = source_of(ModelRunner.__init__)
    assert text.index("self.model_config = model_config") < text.index("self.init_torch_distributed()")
    assert text.index("self.init_torch_distributed()") < text.index("self.initialize()")
    assert "self.load_model()" in source_of(ModelRunner.initialize)


def test_preloaded_bytes_are_read_from_the_loader_and_added_to_the_sample() -> None:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.model_runner import ModelRunner

    assert "self.loader.preloaded_weights_bytes" in source_of(ModelRunner.preloaded_weights_bytes.fget)
    assert "self.pre_model_load_memory += preloaded_weights_bytes" in source_of(ModelRunner.account_preloaded_weights)
    assert "account_preloaded_weights(preloaded_weights_bytes)" in inspect.getsource(Scheduler)


def test_the_default_loader_can_be_watched_where_it_loads() -> None:
    from sglang.srt.model_loader.loader import DefaultModelLoader

    assert "self.load_weights_and_postprocess(" in source_of(DefaultModelLoader.load_model)
    parameters = inspect.signature(DefaultModelLoader.load_weights_and_postprocess).parameters
    assert list(parameters) == ["model", "weights", "target_device"]


def test_the_load_config_can_be_replaced_field_by_field() -> None:
    from sglang.srt.configs.load_config import LoadConfig, LoadFormat

    ours = LoadConfig(load_format="private", model_loader_extra_config='{"flashboot": {}, "num_threads": 2}')
    assert ours.load_format == LoadFormat.PRIVATE == "private"
    usual = dataclasses.replace(ours, load_format=LoadFormat.AUTO, model_loader_extra_config={"num_threads": 2})
    assert (usual.load_format, usual.model_loader_extra_config) == (LoadFormat.AUTO, {"num_threads": 2})


def test_models_are_built_by_the_known_functions(checkpoints: dict[str, Path]) -> None:
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model

    assert list(inspect.signature(_initialize_model).parameters) == ["model_config", "load_config", "quant_config"]
    assert list(inspect.signature(_get_quantization_config).parameters) == ["model_config", "load_config"]


def test_building_on_meta_would_leave_dead_rotary_modules_behind(checkpoints: dict[str, Path]) -> None:
    """Why attach.py saves, clears and restores _ROPE_DICT."""
    import torch
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT, get_rope

    runtime.publish(checkpoints["llama"])
    saved = dict(_ROPE_DICT)
    _ROPE_DICT.clear()
    try:
        with torch.device("meta"):
            get_rope(32, 32, 64, 10000, dtype=torch.bfloat16)
        assert [buffer.is_meta for module in _ROPE_DICT.values() for buffer in module.buffers()] == [True]
    finally:
        _ROPE_DICT.clear()
        _ROPE_DICT.update(saved)


def test_the_published_configuration_has_every_name_that_we_read(
    checkpoints: dict[str, Path], socket_path: Path
) -> None:
    from flashboot_agent.engine.identity import identity_of, place_of
    from flashboot_agent.engine.session import published_settings
    from flashboot_agent.engine.support import require_supported

    config = runtime.publish(checkpoints["qwen3_moe"], socket_path)
    settings = published_settings()
    assert settings is not None
    require_supported(config)
    identity = identity_of(settings, config)
    assert identity["architecture"] == "Qwen3MoeForCausalLM"
    assert all(isinstance(value, str) for value in identity.values())
    assert str(place_of(config)) == "tp0"


# An SGLang without our hook must fail, whatever the model ------------------------------------------------------


def unhooked() -> Any:
    from sglang.srt.model_loader import loader

    return inspect.unwrap(loader.get_model_loader)


def ours(load_format: str) -> Any:
    from sglang.srt.configs.load_config import LoadConfig

    extra = json.dumps({"flashboot": {"model": "m", "revision": "1"}})
    return LoadConfig(load_format=load_format, model_loader_extra_config=extra)


def test_load_format_private_without_the_hook_ends_with_an_error(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="private_model_loader"):
        unhooked()(ours("private"), runtime.publish(checkpoints["llama"]))


@pytest.mark.parametrize("quantization", ["modelopt_fp8", "auto-round-int8"])
def test_formats_that_shadow_private_without_the_hook_refuse_our_extra_config(
    checkpoints: dict[str, Path], quantization: str
) -> None:
    config = runtime.publish(checkpoints["llama"])
    config.quantization = quantization
    with pytest.raises(ValueError, match="flashboot"):
        unhooked()(ours("private"), config)


def test_the_default_loader_refuses_our_extra_config(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="flashboot"):
        unhooked()(ours("auto"), runtime.publish(checkpoints["llama"]))


# Late writers --------------------------------------------------------------------------------------------------


def test_every_writer_of_the_updater_is_guarded() -> None:
    from sglang.srt.managers import io_struct
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
    from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin

    public = {name for name in vars(SchedulerWeightUpdaterManager) if not name.startswith("_")}
    methods = {name for name in public if callable(getattr(SchedulerWeightUpdaterManager, name))}
    readers = {
        *("init_weights_update_group", "destroy_weights_update_group", "flush_cache_after_weight_update"),
        *("record_weight_version_after_update", "get_weights_by_name", "save_remote_model", "save_sharded_model"),
    }
    assert methods - readers == {*guard.ANSWERS, *guard.MEMORY, "check_weights"}
    for answer in guard.ANSWERS.values():
        assert {"success", "message"} <= set(getattr(io_struct, answer).__struct_fields__)
    for name in guard.MEMORY:
        assert inspect.iscoroutinefunction(inspect.unwrap(getattr(TokenizerControlMixin, name)))


def test_the_weight_checker_has_the_known_actions() -> None:
    from sglang.srt.utils.weight_checker import WeightChecker

    text = source_of(WeightChecker.handle)
    for action in (*guard.READING_CHECKS, "reset_tensors"):
        assert f'action == "{action}"' in text
    assert text.count("action ==") == len(guard.READING_CHECKS) + 1
