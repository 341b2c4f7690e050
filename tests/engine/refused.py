"""Models and flags that FlashBoot refuses: how SGLang's configuration says them, and a word of the answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final


def model(architecture: str = "LlamaForCausalLM", **facts: Any) -> Any:
    """Of SGLang's ModelConfig what support.py reads."""
    config = SimpleNamespace(architectures=[architecture], quantization_config=facts.pop("quantization_config", None))
    return SimpleNamespace(**({"is_draft_model": False, "quantization": None, "hf_config": config} | facts))


def quantised(method: str, **more: Any) -> Any:
    return model(quantization=method, quantization_config={"quant_method": method, **more})


MODELS: Final[dict[str, tuple[Any, str]]] = {
    "another architecture": (model("MixtralForCausalLM"), "MixtralForCausalLM"),
    "no architecture": (model(""), "architecture"),
    "a draft model": (model(is_draft_model=True), "draft"),
    "block FP8": (quantised("fp8", weight_block_size=[128, 128]), "fp8 in blocks"),
    "block FP8, ue8m0 scales": (
        quantised("fp8", weight_block_size=[128, 128], scale_fmt="ue8m0"),
        "fp8 in blocks",
    ),
    "FP8": (quantised("fp8"), "quantisation fp8:"),
    "FP8, made on the fly (`--quantization fp8`)": (model(quantization="fp8"), "quantisation fp8:"),
    "AWQ": (quantised("awq"), "quantisation awq"),
    "GPTQ": (quantised("gptq"), "quantisation gptq"),
    "MXFP4": (quantised("mxfp4"), "quantisation mxfp4"),
    "compressed-tensors": (quantised("compressed-tensors"), "quantisation compressed-tensors"),
    "ModelOpt FP4": (quantised("modelopt_fp4"), "quantisation modelopt_fp4"),
}

FLAGS: Final[dict[str, dict[str, Any]]] = {
    "--weight-cache-mode": {"weight_cache_mode": "client"},
    "--custom-weight-loader": {"custom_weight_loader": ["some.loader"]},
    "--enable-weights-cpu-backup": {"enable_weights_cpu_backup": True},
    "--cpu-offload-gb": {"cpu_offload_gb": 1},
    "--ep-num-redundant-experts": {"ep_num_redundant_experts": 2},
    "--enable-eplb": {"enable_eplb": True},
    "--init-expert-location": {"init_expert_location": "places.json"},
    "--elastic-ep-backend": {"elastic_ep_backend": "mooncake"},
    "--kt-weight-path": {"kt_weight_path": "/experts"},
    "--model-impl": {"model_impl": "transformers"},
    "--modelopt-quant": {"modelopt_quant": "fp8"},
    "--enable-paged-experts": {"enable_paged_experts": True},
    "--moe-a2a-backend": {"moe_a2a_backend": "deepep"},
    "--startup-weight-load-mode": {"startup_weight_load_mode": "overlap"},
    "--checkpoint-engine-wait-weights-before-ready": {"checkpoint_engine_wait_weights_before_ready": True},
    "--speculative-algorithm": {"speculative_algorithm": "EAGLE"},
    "--enable-lora": {"enable_lora": True},
    "--enable-memory-saver": {"enable_memory_saver": True},
    "--offload-group-size": {"offload_group_size": 1},
    "--dp-size": {"dp_size": 2},
    "--dcp-size": {"dcp_size": 2},
    "--dwdp-size": {"dwdp_size": 2},
    "--device": {"device": "cuda"},
}
