"""SGLang's configuration and groups in a process that loads and does not serve: for tracing and converting by command.

The order is that of SGLang's own scheduler: arguments, publication, communicators, then loaders. One rank: a map or an
image of several is made by a process per rank, as docs/design/0023 tells.
"""

from __future__ import annotations

import mmap
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from flashboot_agent.core.checkpoint import shards
from flashboot_agent.core.digest import chunk_digests, root_digest
from flashboot_agent.core.errors import BadRequest, UnsupportedEngine
from flashboot_agent.delta.disk import room_in
from flashboot_agent.delta.permutation import PermutationMap, Tensor
from flashboot_agent.delta.source import ImageSource
from flashboot_agent.engine.convert import convert
from flashboot_agent.engine.feed import Feed, Fetch
from flashboot_agent.engine.identity import identity_of
from flashboot_agent.engine.preflight import asked
from flashboot_agent.engine.support import require_supported, require_version
from flashboot_agent.engine.trace import trace
from flashboot_agent.files import write_atomically
from flashboot_agent.load.image import open_image
from flashboot_agent.load.image_write import write_image
from flashboot_agent.sync.arena_places import OF_TORCH
from flashboot_agent.wire.base import now
from flashboot_agent.wire.layout import Layout

FLAGS: Final = (
    "give the engine's arguments after --, with --model-path and "
    """--model-loader-extra-config '{"flashboot": {"model": "NAME", "revision": "REVISION"}}'"""
)
_TORCH_NAMES: Final = {text: name for name, text in OF_TORCH.items()}


class Given(NamedTuple):
    """What an engine with these arguments would load, and how."""

    feed: Feed
    tensors: list[Tensor]
    fetch: Fetch
    identity: dict[str, str]


def trace_map(image: Path, path: Path, arguments: Sequence[str]) -> PermutationMap:
    """Write the permutation map of the arena whose image this is. Raises as `trace`, ImageDamaged, OSError."""
    with open_image(image) as opened, ExitStack() as stack:
        layout = _layout(opened.layout, image)
        given = start(arguments, stack)
        traced = trace(layout, given.tensors, given.fetch, given.feed)
    write_atomically(path, traced.to_bytes())
    return traced


def convert_image(image: Path, path: Path, arguments: Sequence[str], number: int | None) -> str:
    """Write the image of the arena as it is with the weights that the arguments name; the digest of its bytes.
    `number`: the version that it is then (default: the next). In memory: one arena, and about one layer of the model.

    Raises as `convert`, ImageDamaged, DiskFull, OSError."""
    with open_image(image) as opened, ExitStack() as stack:
        layout = _layout(opened.layout, image)
        given = start(arguments, stack)
        source = ImageSource(opened)
        memory = memoryview(mmap.mmap(-1, source.nbytes))
        source.read_into(memory)
        for part in convert(layout, given.tensors, given.fetch, given.feed):
            memory[part.offset : part.offset + part.data.nbytes] = part.data
        digests = chunk_digests(memory)
        digest, was = root_digest(digests), opened.manifest
        manifest = was.model_copy(
            update={
                "digest": digest,
                "version": was.version + 1 if number is None else number,
                "written_at": now(),
            }
        )
        with room_in(path.parent, str(path)):
            write_image(path, manifest, opened.layout, digests, memory, bytes_per_second=0, stop=threading.Event())
    return digest


def start(arguments: Sequence[str], stack: ExitStack) -> Given:
    """Publish SGLang's configuration in this process. `stack`: closes the checkpoint's files.

    Raises BadRequest, UnsupportedEngine, UnsupportedModel, Checkpoint…."""
    found = asked(arguments)
    if found is None or found.model_path is None:
        raise BadRequest(FLAGS)
    require_version(version("sglang"))
    tensors, fetch = _checkpoint(Path(found.model_path), stack)
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import prepare_server_args

    server = prepare_server_args(list(arguments))
    server.resolve_once()
    if server.tp_size * server.pp_size > 1:
        raise UnsupportedEngine(
            f"these arguments are of {server.tp_size * server.pp_size} ranks, the command is for one; for more, call "
            "engine/trace.py or engine/convert.py in each rank's process (docs/design/0023)"
        )
    publish(server, role="scheduler", ranks=SpawnRanks(spawn_world_rank(server, tp_rank=0, pp_rank=0), gpu_id=0))
    config = ModelConfig.from_server_args(server)
    require_supported(config)
    _start_groups(server)
    identity = identity_of(found.settings, config)
    return Given(Feed(config, DeviceConfig(server.device, 0), LoadConfig(), identity), tensors, fetch, identity)


def _start_groups(server: Any) -> None:
    """Of one rank."""
    import torch
    from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config

    initialize_moe_config()
    if not torch.distributed.is_initialized():  # a process may do this twice
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            method = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        backend = "gloo" if server.device == "cpu" else "nccl"
        init_distributed_environment(
            world_size=1, rank=0, distributed_init_method=method, local_rank=0, backend=backend
        )
        initialize_model_parallel()
    initialize_dp_attention(server)


def _layout(document: bytes, image: Path) -> Layout:
    try:
        return Layout.from_bytes(document)
    except ValueError as error:
        raise BadRequest(f"{image}: {error}") from error


def _checkpoint(folder: Path, stack: ExitStack) -> tuple[list[Tensor], Fetch]:
    """Its tensors, which are read when they are asked for. Raises Checkpoint…, BadRequest."""
    from safetensors import safe_open

    files: dict[str, Any] = {}
    tensors: list[Tensor] = []
    for shard in shards(folder):
        file = stack.enter_context(safe_open(str(shard.path), framework="pt"))
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            part = file.get_slice(name)
            if (dtype := _TORCH_NAMES.get(part.get_dtype())) is None:
                raise BadRequest(f"{shard.path}: {name} is {part.get_dtype()}, which can't be traced or converted")
            if name not in files:
                tensors.append(Tensor(name, dtype, tuple(part.get_shape())))
            files[name] = file
    return tensors, lambda tensor: files[tensor.name].get_tensor(tensor.name)
