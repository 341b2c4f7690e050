"""SGLang's runtime in this process, as far as loading a model needs it: configuration, ranks, one-rank groups.

The same order as in SGLang's own scheduler: arguments, publication, communicators, then loaders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demo.architectures import Arch

ARCHITECTURES: tuple[Arch, ...] = ("qwen3_moe", "qwen2", "llama")

_started: list[bool] = []


def publish(folder: Path, socket_path: Path | None = None, **arguments: Any) -> Any:
    """Publish the configuration of an engine for `folder` (ours, when a socket is given); returns its ModelConfig."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
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
    ranks = SpawnRanks(world_rank=spawn_world_rank(server_args, tp_rank=0, pp_rank=0), gpu_id=0)
    publish(server_args, role="scheduler", ranks=ranks)
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


def load(model_config: Any) -> tuple[Any, Any]:
    """Loader and model, by way of SGLang's factory."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader
    from sglang.srt.runtime_context import get_model

    config = LoadConfig(
        load_format=get_model().load_format, model_loader_extra_config=get_model().model_loader_extra_config, tp_rank=0
    )
    chosen = loader.get_model_loader(config, model_config)
    return chosen, chosen.load_model(model_config=model_config, device_config=DeviceConfig("cpu", 0))
