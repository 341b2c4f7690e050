"""What FlashBoot may carry: an allow-list, widened only behind a parity test (tests/engine/test_parity.py).

Asked before a byte moves, on the seed as on every attaching engine. An engine that is not on the list ends with an
error that names what stands in the way; it is never loaded in another way instead.
"""

from __future__ import annotations

from typing import Any, Final

from flashboot_agent.core.errors import UnsupportedEngine, UnsupportedModel

SGLANG_VERSION: Final = "0.5.23"
"""The one version whose seams the contract tests hold."""

ARCHITECTURES: Final = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3MoeForCausalLM"})

_PARALLEL: Final = ("tp_size", "pp_size", "dp_size", "ep_size", "attn_dp_size", "attn_cp_size", "moe_dp_size")


def require_version(found: str) -> None:
    """Raises UnsupportedEngine."""
    if found != SGLANG_VERSION:
        raise UnsupportedEngine(
            f"this FlashBoot works with SGLang {SGLANG_VERSION} and found {found}; "
            "install the matching pair, or start the engine without FlashBoot's flags"
        )


def require_supported(model_config: Any) -> None:
    """Raises UnsupportedModel or UnsupportedEngine; reads SGLang's published configuration of this process."""
    _require_model(model_config)
    _require_features()


def _require_model(model_config: Any) -> None:
    if model_config.is_draft_model:
        raise UnsupportedModel("a draft model: FlashBoot carries main models only so far")
    names = list(model_config.hf_config.architectures or [])
    if not names or names[0] not in ARCHITECTURES:
        raise UnsupportedModel(f"architecture {names}: FlashBoot carries {', '.join(sorted(ARCHITECTURES))} so far")
    config_says = getattr(model_config.hf_config, "quantization_config", None)
    if model_config.quantization is not None or config_says:
        method = model_config.quantization or dict(config_says or {}).get("quant_method")
        raise UnsupportedModel(f"quantisation {method}: FlashBoot carries unquantised weights only so far")


def _require_features() -> None:
    from sglang.srt.runtime_context import get_device, get_exec, get_lora, get_model, get_parallel, get_spec

    device = str(get_device().device)
    if device != "cpu":
        raise UnsupportedEngine(f"device {device}: this version carries arenas in host memory, for engines on the CPU")
    parallel, run = get_parallel(), get_exec()
    wide = {name: getattr(parallel, name) for name in _PARALLEL if getattr(parallel, name) != 1}
    if wide:
        raise UnsupportedModel(f"{wide}: FlashBoot carries one rank per replica so far")
    standing_in_the_way = {
        "--startup-weight-load-mode": get_model().startup_weight_load_mode != "serial",
        "--weight-cache-mode": get_model().weight_cache_mode != "off",
        "--custom-weight-loader": bool(get_model().custom_weight_loader),
        "--speculative-algorithm": get_spec().speculative_algorithm is not None,
        "--enable-lora": bool(get_lora().enable_lora or get_lora().lora_paths),
        "--enable-memory-saver": run.features.enable_memory_saver,
        "--enable-weights-cpu-backup": run.features.enable_weights_cpu_backup,
        "--cpu-offload-gb": run.offload.cpu_offload_gb > 0,
        "--offload-group-size": run.offload.offload_group_size > 0,
        "--enable-eplb": run.moe.enable_eplb,
        "--ep-num-redundant-experts": run.moe.ep_num_redundant_experts != 0,
        "--init-expert-location": run.moe.init_expert_location != "trivial",
        "--elastic-ep-backend": run.moe.elastic_ep_backend is not None,
        "--enable-paged-experts": run.moe.enable_paged_experts,
        "--moe-a2a-backend": run.moe.moe_a2a_backend != "none",
    }
    flags = [flag for flag, is_set in standing_in_the_way.items() if is_set]
    if flags:
        raise UnsupportedModel(
            f"{', '.join(flags)}: not together with FlashBoot so far (weights are shared, read-only)"
        )
