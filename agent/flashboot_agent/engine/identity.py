"""The full identity of what an engine has in memory after loading: equal identities, equal bytes in equal places.

Computed before the load, from the same sources on the seed and on an attaching engine; loading may change the
configuration afterwards. Values are strings, so that a mismatch can be told field by field.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from flashboot_agent.core.errors import CheckpointMissing
from flashboot_agent.engine.settings import EngineSettings
from flashboot_agent.wire.control import Place

SCHEMA: Final = "1"

_SIZES: Final = (
    *("tp_size", "pp_size", "dp_size", "ep_size", "attn_tp_size", "attn_dp_size", "attn_cp_size", "moe_ep_size"),
    *("moe_tp_size", "moe_dp_size", "dcp_size", "enable_dp_lm_head", "moe_dense_tp_size"),
)
_RANKS: Final = (
    *("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank", "moe_ep_rank", "moe_tp_rank"),
    "moe_dp_rank",
)

_HARMLESS: Final = re.compile(
    r"HOST|PORT|_IP\b|LOG|TIMEOUT|_DIR\b|_PATH\b|METRIC|TRAC|PROFIL|PLUGIN|TEST|DEBUG|INTERVAL|RUN_ID|THREAD|AFFINITY|"
    r"NUMA|WATCHDOG|HEALTH|PREFETCH|BLOCK_NONZERO|MODELSCOPE|OUTLINES|IPC_TRANSPORT"
)
"""SGLANG_* variables about places, times and words, not about weights. All others count, unknown ones too."""


def identity_of(settings: EngineSettings, model_config: Any) -> dict[str, str]:
    """The identity of this process's rank; reads SGLang's published configuration.

    Raises CheckpointMissing when config.json can't be read.
    """
    from sglang.srt.runtime_context import get_device, get_exec, get_model, get_parallel

    parallel, run, model = get_parallel(), get_exec(), get_model()
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "model": settings.model,
        "revision": settings.revision,
        "config_sha256": _config_digest(Path(model_config.model_path)),
        "config_overrides": model.json_model_override_args,
        "architecture": (model_config.hf_config.architectures or ["?"])[0],
        "role": "draft" if model_config.is_draft_model else "main",
        "model_impl": model.model_impl,
        "dtype": str(model_config.dtype),
        "quantization": model_config.quantization or "none",
        "kv_cache_dtype": model.kv_cache_dtype,
        "device": str(get_device().device),
        "capability": _capability(str(get_device().device)),
        "attention_backend": _attention(run.kernel),
        "moe_runner_backend": run.moe.moe_runner_backend,
        "moe_a2a_backend": run.moe.moe_a2a_backend,
        "shared_experts_fusion": not run.moe.disable_shared_experts_fusion,
    }
    fields |= {name: version(name) for name in ("sglang", "torch", "transformers")}
    fields |= {name: getattr(parallel, name) for name in (*_SIZES, *_RANKS)}
    fields |= layout_variables(os.environ)
    return {name: str(value) for name, value in sorted(fields.items())}


def place_of(model_config: Any) -> Place:
    """This rank by its place."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    return Place(
        pp=parallel.pp_rank,
        tp=parallel.tp_rank,
        ep=parallel.moe_ep_rank,
        dp=parallel.attn_dp_rank,
        draft=model_config.is_draft_model,
    )


def layout_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The SGLANG_* variables that may change what loading makes."""
    return {
        f"env.{name}": value
        for name, value in environment.items()
        if name.startswith("SGLANG_") and not _HARMLESS.search(name.removeprefix("SGLANG_"))
    }


def _config_digest(folder: Path) -> str:
    path = folder / "config.json"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointMissing(
            f"{path} can't be read ({error.strerror}); --model-path must be a local folder"
        ) from error


def _attention(kernel: Any) -> str:
    names = (kernel.attention_backend, kernel.prefill_attention_backend, kernel.decode_attention_backend)
    return "/".join(name or "default" for name in names)


def _capability(device: str) -> str:
    """What kernels and packed layouts depend on: the GPU's compute capability, or the CPU's instruction set."""
    if device == "cpu":
        from sglang.srt.utils import cpu_has_amx_support

        return f"{platform.machine()}{'+amx' if cpu_has_amx_support() else ''}"
    import torch

    return ".".join(map(str, torch.cuda.get_device_capability()))
