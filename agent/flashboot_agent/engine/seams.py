"""Every name of SGLang that the plug-in touches, and how it is called: what a move to another version is held to.

Pure data and one check; nothing of SGLang is imported before `problems` is called. `flashboot doctor` checks the list
in the engine's image; tests/engine/test_seams.py checks it too, and fails when our source uses a name that is not in
it. What these names must *do* is held by tests/engine/test_contract.py.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final


@dataclass(frozen=True)
class Seam:
    """`target` is `module:name`, `name` may have dots. `call`: its parameters as `shape_of` writes them; None where
    we do not call it, or SGLang may change how. `has`: attributes that we use on it."""

    target: str
    call: str | None = None
    has: tuple[str, ...] = ()


_SRT: Final = "sglang.srt."
_UPDATER: Final = "managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager"
_CONTROL: Final = "managers.tokenizer_control_mixin:TokenizerControlMixin"
_RUNNER: Final = "model_executor.model_runner_components.weight_updater:WeightUpdater"
_FREQUENCIES: Final = "dim, seqlen, original_seq_len, base, factor, beta_fast, beta_slow"
_ANSWER: Final = ("success", "message")

SEAMS: Final = tuple(
    Seam(target if target.startswith("sglang.") else _SRT + target, call, has)
    for target, call, has in (
        # Getting in
        ("plugins:load_plugins", "", ()),
        ("plugins:GENERAL_PLUGINS_GROUP", None, ()),
        ("plugins.hook_registry:HookRegistry", None, ("_patched",)),
        ("plugins.hook_registry:HookRegistry.register", "target, hook, hook_type=, *, source=", ()),
        ("plugins.hook_registry:HookRegistry.apply_hooks", "", ()),
        ("plugins.hook_registry:HookType", None, ("AROUND",)),
        ("managers.scheduler:run_scheduler_process", None, ()),
        # What we hook, beside the late writers below
        ("model_loader.loader:get_model_loader", "load_config, model_config=", ()),
        ("model_executor.model_runner_components:load_model_utils", None, ("get_model_loader",)),
        ("model_executor.model_runner:ModelRunner.init_torch_distributed", "self", ()),
        ("observability.startup_time:build_engine_startup_time", "scheduler_startup_times, *, tokenizer_e2e", ()),
        ("managers.tokenizer_manager:TokenizerManager._set_engine_state_field", "self, name, value", ()),
        ("managers.tokenizer_manager:SignalHandler.sigterm_handler", "self, signum=, frame=", ()),
        ("utils.common:launch_dummy_health_check_server", "host, port, enable_metrics", ()),
        ("utils:kill_process_tree", "parent_pid, include_parent=, skip_pid=, wait_timeout=", ()),
        # Building and loading models
        ("model_loader:loader", None, ()),
        ("model_loader.loader:BaseModelLoader", "load_config", ("preloaded_weights_bytes",)),
        ("model_loader.loader:BaseModelLoader.load_model", "self, *, model_config, device_config", ()),
        ("model_loader.loader:BaseModelLoader.download_model", "self, model_config", ()),
        ("model_loader.loader:DefaultModelLoader", "load_config", ()),
        ("model_loader.loader:DefaultModelLoader.load_model", "self, *, model_config, device_config", ()),
        ("model_loader.loader:DefaultModelLoader.load_weights_and_postprocess", "model, weights, target_device", ()),
        ("model_loader.loader:DefaultModelLoader.load_weights_only", "model, weights, target_device", ()),
        ("model_loader.loader:DefaultModelLoader._get_all_weights", "self, model_config, model", ()),
        ("model_loader.loader:_modules_with_quant_method", "model", ()),
        ("model_loader.loader:device_loading_context", "module, target_device", ()),
        ("model_loader.loader:_get_quantization_config", "model_config, load_config", ()),
        ("model_loader.loader:_initialize_model", "model_config, load_config, quant_config=", ()),
        ("model_loader.utils:set_default_torch_dtype", "dtype", ()),
        ("layers.rotary_embedding.factory:_ROPE_DICT", None, ("clear", "update")),
        ("sglang.kernels.ops.attention.dsv4.rope:precompute_freqs_cis", _FREQUENCIES, ()),
        ("models.qwen3_moe:Qwen3MoeSparseMoeBlock", None, ()),
        ("utils:LazyValue", "creator", ("value",)),
        ("configs.load_config:LoadFormat", None, ("AUTO", "PRIVATE")),
        ("configs.load_config:LoadConfig", None, ("load_format",)),
        # The published configuration
        *(
            (f"runtime_context:get_{name}", "", ())
            for name in ("context", "device", "exec", "lora", "model", "parallel", "serving", "spec")
        ),
        ("server_args:ServerArgs", None, ()),
        ("environ:Envs", None, ()),
        ("environ:EnvField", None, ()),
        ("utils:cpu_has_amx_support", "", ()),
        # What `flashboot doctor` does with a command line
        ("server_args:prepare_server_args", "argv", ()),
        ("runtime_context:publish", "server_args, *, role, hf_config=, ranks=", ()),
        ("runtime_context:SpawnRanks", None, ("world_rank", "gpu_id")),
        ("runtime_context:spawn_world_rank", "server_args, *, tp_rank, pp_rank", ()),
        ("configs.model_config:ModelConfig", None, ("from_server_args",)),
        # What `flashboot delta trace|convert` does beside that
        ("configs.device_config:DeviceConfig", None, ()),
        ("layers.moe:initialize_moe_config", "", ()),
        ("layers.dp_attention:initialize_dp_attention", "server_args", ()),
        (
            "distributed.parallel_state:init_distributed_environment",
            "world_size=, rank=, distributed_init_method=, local_rank=, backend=, timeout=, moe_a2a_backend=, "
            "recovered_rank=, max_world_size=",
            (),
        ),
        (
            "distributed.parallel_state:initialize_model_parallel",
            "backend=, duplicate_tp_group=, enable_symm_mem=, recovered_rank=, rank_offset=, max_world_size=",
            (),
        ),
        # Late writers
        ("managers:io_struct", None, ()),
        (_UPDATER, None, ()),
        *(
            (f"{_UPDATER}.{name}", "self, recv_req", ())
            for name in (
                *("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor"),
                *("update_weights_from_ipc", "begin_weight_update", "end_weight_update", "check_weights"),
                *("release_memory_occupation", "resume_memory_occupation"),
            )
        ),
        *(
            (f"{_RUNNER}.{name}", call, ())
            for name, call in (
                (
                    "update_weights_from_disk",
                    "self, model_path, load_format, weight_name_filter=, recapture_cuda_graph=",
                ),
                ("load_weights_from_distributed", "self, named_tensors"),
                ("update_weights_from_tensor", "self, named_tensors, load_format="),
                ("update_weights_from_ipc", "self, recv_req"),
                ("begin_weight_update", "self"),
                ("end_weight_update", "self, *, run_post_load"),
            )
        ),
        ("eplb.expert_location_updater:ExpertLocationUpdater.update", None, ()),
        (f"{_CONTROL}.release_memory_occupation", "self, obj, request=", ()),
        (f"{_CONTROL}.resume_memory_occupation", "self, obj, request=", ()),
        ("managers.io_struct:UpdateWeightFromDiskReqOutput", None, (*_ANSWER, "num_paused_requests")),
        *(
            (f"managers.io_struct:{name}ReqOutput", None, _ANSWER)
            for name in (
                *("UpdateWeightsFromDistributed", "UpdateWeightsFromTensor", "UpdateWeightsFromIPC"),
                *("BeginWeightUpdate", "EndWeightUpdate", "CheckWeights"),
            )
        ),
    )
)


_STARS: Final[dict[Any, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def problems(seams: Iterable[Seam]) -> Iterator[str]:
    """One line for each seam that is not as it was pinned."""
    for seam in seams:
        module, _, name = seam.target.partition(":")
        try:
            found = reduce(getattr, name.split("."), _holder(module, name))
        except (ImportError, AttributeError) as error:
            yield f"{seam.target} is not there ({error})"
            continue
        if seam.call is not None and (shape := shape_of(found)) != seam.call:
            yield f"{seam.target} takes ({shape}), known is ({seam.call})"
        for attribute in seam.has:
            if not hasattr(found, attribute):
                yield f"{seam.target} has no {attribute}"


def shape_of(target: Any) -> str:
    """The parameters of what a hook may have wrapped: names, `=` where there is a default, `*` as in a signature."""
    words: list[str] = []
    named_only = False
    for parameter in inspect.signature(inspect.unwrap(target)).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            named_only = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY and not named_only:
            words.append("*")
            named_only = True
        words.append(
            _STARS.get(parameter.kind, "")
            + parameter.name
            + ("" if parameter.default is inspect.Parameter.empty else "=")
        )
    return ", ".join(words)


def _holder(module: str, name: str) -> Any:
    """The module, with the submodule of that name imported when it is one, as `from package import module` does."""
    found = importlib.import_module(module)
    first = name.partition(".")[0]
    if not hasattr(found, first) and hasattr(found, "__path__"):
        importlib.import_module(f"{module}.{first}")
    return found
