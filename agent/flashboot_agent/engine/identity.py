"""The full identity of what an engine has in memory after loading: equal identities, equal bytes in equal places.

Computed before the load, from the same sources on the seed and on an attaching engine; loading may change the
configuration afterwards. Values are strings, so that a mismatch can be told field by field. What is left at SGLang's
default is left out, so that an identity stays small; what is known to change nothing in an arena is left out with a
reason (arguments.py, variables.py). Everything else counts, whatever it means.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from flashboot_agent.core.errors import CheckpointMissing, UnsupportedEngine
from flashboot_agent.engine import arguments, variables
from flashboot_agent.engine.settings import EXTRA_CONFIG_KEY, EngineSettings, extra_config_of
from flashboot_agent.wire.attach_socket import MAX_MESSAGE
from flashboot_agent.wire.place import Place

SCHEMA: Final = "2"

MAX_BYTES: Final = MAX_MESSAGE // 2
"""A usual identity has some 2 KiB."""

SIZES: Final = (
    *("tp_size", "pp_size", "dp_size", "ep_size", "attn_tp_size", "attn_dp_size", "attn_cp_size", "attn_dcp_size"),
    *("moe_ep_size", "moe_tp_size", "moe_dp_size", "moe_dense_tp_size", "dcp_size", "dwdp_size"),
)
RANKS: Final = (
    *("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank"),
    *("moe_ep_rank", "moe_tp_rank", "moe_dp_rank"),
)
"""All within one replica. `dp_rank` is not among them: it numbers whole replicas, which hold equal bytes."""

PACKAGES: Final = (
    *("sglang", "torch", "transformers", "triton", "compressed-tensors", "sglang-kernel", "sgl-kernel"),
    *("flashinfer-python", "flashinfer-cubin", "sgl-deep-gemm", "deep-gemm", "sgl-deep-ep", "sgl-flash-mla"),
    *("humming-kernels", "tilelang", "nvidia-cutlass-dsl", "quack-kernels", "amd-aiter", "kernels"),
)
"""Distributions that build models or lay weights out; those that are not installed are left out."""

FILES: Final = ("config.json", "hf_quant_config.json", "quant_model_description.json", "quantize_config.json")
"""Of the model's folder: what SGLang builds a model and its quantisation from. Only the first must be there."""


def identity_of(settings: EngineSettings, model_config: Any) -> dict[str, str]:
    """The identity of this process's rank; reads SGLang's published configuration.

    Raises:
        CheckpointMissing: config.json can't be read.
        UnsupportedEngine: an argument has a value that can't be compared between engines, or there are too many.
    """
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "model": settings.model,
        "revision": settings.revision,
        **_model(model_config),
        **_device(),
        **{name: getattr(parallel, name) for name in (*SIZES, *RANKS)},
        **{f"version.{name}": text for name in PACKAGES if (text := _version(name)) is not None},
    }
    found = {name: arguments.text_of(name, value) for name, value in fields.items()}
    found |= arguments.counted(*published())
    found |= variables.counted(os.environ, variables.declared())
    require_small(found)
    return dict(sorted(found.items()))


def require_small(identity: Mapping[str, str]) -> None:
    """Raises UnsupportedEngine for an identity that does not fit into one message to the agent."""
    nbytes = len(json.dumps(identity))
    if nbytes > MAX_BYTES:
        raise UnsupportedEngine(
            f"the engine's identity has {nbytes} bytes, at most {MAX_BYTES} are carried: too many arguments and "
            f"variables ({len(identity)}) are not at their defaults"
        )


def published() -> tuple[dict[str, Any], dict[str, Any]]:
    """Every argument of SGLang as this process's configuration has it, and SGLang's default of each."""
    from sglang.srt.runtime_context import get_context
    from sglang.srt.server_args import ServerArgs

    context, untouched = get_context(), ServerArgs(model_path="")
    names = argument_names()
    values = {name: context.config_leaf(name) for name in names}
    if values["tokenizer_path"] == values["model_path"]:  # SGLang's default; what lies there counts, not where it is
        values["tokenizer_path"] = untouched.tokenizer_path
    return values, {name: getattr(untouched, name) for name in names}


def argument_names() -> tuple[str, ...]:
    """All arguments of the installed SGLang."""
    from sglang.srt.server_args import ServerArgs

    return tuple(ServerArgs.__struct_fields__)


def _model(model_config: Any) -> dict[str, Any]:
    from sglang.srt.runtime_context import get_model

    config = model_config.hf_config
    quantised: Any = getattr(config, "quantization_config", None) or getattr(config, "compression_config", None)
    extra = extra_config_of(get_model().model_loader_extra_config)
    return {
        "architecture": (config.architectures or ["?"])[0],
        "role": "draft" if model_config.is_draft_model else "main",
        "dtype": str(model_config.dtype),
        "quantization": model_config.quantization or "none",
        "quantization_config": quantised.to_dict() if hasattr(quantised, "to_dict") else quantised,
        "loader_extra_config": {key: value for key, value in extra.items() if key != EXTRA_CONFIG_KEY},
        **_digests(Path(model_config.model_path)),
    }


def _digests(folder: Path) -> dict[str, str]:
    found = {}
    for name in FILES:
        try:
            found[f"sha256.{name}"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            if name == FILES[0] or not isinstance(error, FileNotFoundError):
                raise CheckpointMissing(
                    f"{folder / name} can't be read ({error.strerror}); --model-path must be a local folder"
                ) from error
    return found


def _device() -> dict[str, str]:
    import torch
    from sglang.srt.runtime_context import get_device

    device = str(get_device().device)
    return {"device": device, "capability": _capability(device), "cuda": str(torch.version.cuda or torch.version.hip)}


def _capability(device: str) -> str:
    """What kernels and packed layouts depend on: the GPU's compute capability, or the CPU's instruction set."""
    if device == "cpu":
        from sglang.srt.utils import cpu_has_amx_support

        return f"{platform.machine()}{'+amx' if cpu_has_amx_support() else ''}"
    import torch

    return ".".join(map(str, torch.cuda.get_device_capability()))


@cache
def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def place_of(model_config: Any, draft_index: int | None = None) -> Place:
    """This rank by its place. `draft_index`: which of several draft models, as SGLang counts them.

    Raises UnsupportedEngine for an engine that joined another one: its ranks begin at 0 again.
    """
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    if parallel.ep_join_rank_offset:
        raise UnsupportedEngine("an engine that joins a running one (elastic EP): not together with FlashBoot so far")
    draft = 1 + (draft_index or 0) if model_config.is_draft_model else 0
    return Place(pp=parallel.pp_rank, tp=parallel.tp_rank, draft=draft)
