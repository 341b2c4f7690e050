"""SGLang's runtime in this process, as far as loading a model needs it: configuration, ranks, one-rank groups.

The same order as in SGLang's own scheduler: arguments, publication, communicators, then loaders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.architectures import Arch
from demo.recipes import Fp8


@dataclass(frozen=True)
class Case:
    """A tiny checkpoint; its name is the key in CASES."""

    arch: Arch
    tied: bool | None = None
    fp8: Fp8 | None = None


CASES: dict[str, Case] = {
    "llama": Case("llama"),
    "llama_tied": Case("llama", tied=True),
    "qwen2": Case("qwen2"),
    "qwen2_untied": Case("qwen2", tied=False),
    "qwen3": Case("qwen3"),
    "qwen3_untied": Case("qwen3", tied=False),
    "qwen3_moe": Case("qwen3_moe"),
    "deepseek_v3": Case("deepseek_v3"),
    "deepseek_v4": Case("deepseek_v4"),
}
"""Every model that an engine may carry."""

QUANTISED: dict[str, Case] = {
    "qwen3_fp8": Case("qwen3", fp8="float"),
    "qwen3_fp8_ue8m0": Case("qwen3", fp8="ue8m0"),
    "deepseek_v3_fp8": Case("deepseek_v3", fp8="float"),
}
"""Refused by an engine; the loader's part is tested all the same."""

_started: list[bool] = []
_published: list[Any] = []


def published() -> Any:
    """The ServerArgs that were published last."""
    return _published[-1]


def publish(folder: Path, socket_path: Path | None = None, *, world_rank: int = 0, **arguments: Any) -> Any:
    """Publish the configuration of an engine for `folder` (ours, when a socket is given); returns its ModelConfig."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import ServerArgs

    if socket_path is not None:
        arguments |= {
            "load_format": "private",
            "model_loader_extra_config": json.dumps(
                {"flashboot": {"model": folder.name, "revision": "1", "socket": str(socket_path)}}
            ),
        }
    server_args = ServerArgs(
        model_path=str(folder),
        device="cpu",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        disable_cuda_graph=True,
        **arguments,
    )
    server_args.resolve_once()
    _published[:] = [server_args]
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=world_rank, gpu_id=0))
    _start_groups(server_args)
    return ModelConfig(model_path=str(folder), dtype="bfloat16")


def _start_groups(server_args: Any) -> None:
    if _started:
        return
    _started.append(True)
    import socket

    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config

    initialize_moe_config()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    init_distributed_environment(
        world_size=1, rank=0, distributed_init_method=f"tcp://127.0.0.1:{port}", local_rank=0, backend="gloo"
    )
    initialize_model_parallel()
    initialize_dp_attention(server_args)


def _sample_memory(model_config: Any) -> None:
    """Before a load, as a ModelRunner does, with our hook around it."""
    from types import SimpleNamespace

    from flashboot_agent.engine.session import before_memory_sample

    before_memory_sample(lambda runner: None, SimpleNamespace(model_config=model_config, draft_model_idx=None))


def load(model_config: Any) -> tuple[Any, Any]:
    """Loader and model, by way of SGLang's factory."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader
    from sglang.srt.runtime_context import get_model

    config = LoadConfig(
        load_format=get_model().load_format, model_loader_extra_config=get_model().model_loader_extra_config, tp_rank=0
    )
    _sample_memory(model_config)
    chosen = loader.get_model_loader(config, model_config)
    return chosen, chosen.load_model(model_config=model_config, device_config=DeviceConfig("cpu", 0))


@contextmanager
def own_tables() -> Iterator[None]:
    """As in a process of its own: rotary tables that SGLang shares between models may lie in the arena of another
    test's seed."""
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT

    before = dict(_ROPE_DICT)
    _ROPE_DICT.clear()
    try:
        yield
    finally:
        _ROPE_DICT.clear()
        _ROPE_DICT.update(before)
