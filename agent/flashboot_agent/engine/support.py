"""What FlashBoot may carry: an allow-list, widened only behind a parity test (tests/engine/test_parity.py).

Asked before a byte moves, on the seed as on every attaching engine. An engine that is not on the list ends with an
error that names what stands in the way; it is never loaded in another way instead.
"""

from __future__ import annotations

from typing import Any, Final

from flashboot_agent.core.errors import UnsupportedEngine, UnsupportedModel

SGLANG_VERSION: Final = "0.5.23"
"""The one version whose seams the contract tests hold."""

ARCHITECTURES: Final = frozenset(
    {
        *("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        *("DeepseekV3ForCausalLM", "DeepseekV4ForCausalLM"),
    }
)

_NOT_YET_PARALLEL: Final = ("dp_size", "dcp_size", "dwdp_size")
"""Sizes that must be 1: copies of a model side by side, and two more, were not tried. What each rank of TP, PP, EP, CP,
DP attention and MoE-DP holds is compared with plain SGLang in tests/engine/test_ranks.py; over how many pods the ranks
are spread changes nothing in it.
"""

_MOVES_EXPERTS: Final = "moves experts between ranks while the engine serves, which writes into weights"
_WHY: Final = {
    **dict.fromkeys(("--enable-eplb", "--ep-num-redundant-experts", "--init-expert-location"), _MOVES_EXPERTS),
    "--elastic-ep-backend": _MOVES_EXPERTS,
    "--kt-weight-path": "keeps experts in memory of its own, which the load fills",
    "--model-impl": "FlashBoot carries SGLang's own models so far",
    "--modelopt-quant": "FlashBoot carries unquantised weights only so far",
    "--checkpoint-engine-wait-weights-before-ready": "waits for weights that are written from outside",
}
"""Where a reason helps: what the flag does that can't be with FlashBoot."""


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
    _require_plain_weights(model_config)


def _require_plain_weights(model_config: Any) -> None:
    says = dict(getattr(model_config.hf_config, "quantization_config", None) or {})
    method = model_config.quantization or says.get("quant_method", "unnamed" if says else None)
    if method == "fp8" and says.get("weight_block_size"):
        raise UnsupportedModel(
            "quantisation fp8 in blocks: on a CPU SGLang takes it only with the AMX kernels of a compiled sgl_kernel, "
            "which repack every weight; that layout is not proven, and FlashBoot carries engines on the CPU only so far"
        )
    if method is not None:
        raise UnsupportedModel(f"quantisation {method}: FlashBoot carries unquantised weights only so far")


def _require_features() -> None:
    from sglang.srt.runtime_context import get_device, get_exec, get_lora, get_model, get_parallel, get_spec

    device = str(get_device().device)
    if device != "cpu":
        raise UnsupportedEngine(
            f"--device {device}: this version carries arenas in host memory, for engines on the CPU"
        )
    parallel, run = get_parallel(), get_exec()
    wide = {name: getattr(parallel, name) for name in _NOT_YET_PARALLEL if getattr(parallel, name) != 1}
    if wide:
        sizes = ", ".join(f"--{name.replace('_', '-')} {size}" for name, size in wide.items())
        raise UnsupportedModel(f"{sizes}: must be 1 with FlashBoot so far")
    standing_in_the_way = {
        "--model-impl": get_model().model_impl not in ("auto", "sglang"),
        "--modelopt-quant": get_model().modelopt_quant is not None,
        "--startup-weight-load-mode": get_model().startup_weight_load_mode != "serial",
        "--weight-cache-mode": get_model().weight_cache_mode != "off",
        "--custom-weight-loader": bool(get_model().custom_weight_loader),
        "--checkpoint-engine-wait-weights-before-ready": get_model().checkpoint_engine_wait_weights_before_ready,
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
        "--kt-weight-path": run.moe.kt_weight_path is not None,
        "--enable-paged-experts": run.moe.enable_paged_experts,
        "--moe-a2a-backend": run.moe.moe_a2a_backend != "none",
    }
    flags = [flag for flag, is_set in standing_in_the_way.items() if is_set]
    if flags:
        words = "; ".join(f"{flag}: {_WHY.get(flag, 'not together with FlashBoot so far')}" for flag in flags)
        raise UnsupportedModel(f"{words} (weights are shared, read-only)")
