"""An engine's command line: our flags are complete, its model is there, and its identity can be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from flashboot_agent.core.checkpoint import check_config
from flashboot_agent.core.errors import BadRequest
from flashboot_agent.core.identity import digest_of
from flashboot_agent.engine.doctor.findings import Check, Odd
from flashboot_agent.engine.preflight import Asked, asked
from flashboot_agent.engine.settings import LOAD_FORMAT

_FLAGS: Final = (
    f"""a ModelReplica's template gets them by itself; elsewhere: --load-format {LOAD_FORMAT} """
    """--model-loader-extra-config '{"flashboot": {"model": "NAME", "revision": "REVISION"}}'"""
)


def checks(arguments: Sequence[str]) -> list[Check]:
    return [
        Check("flags", partial(flags, arguments), _FLAGS),
        Check("model", partial(model, arguments), "put the model's config.json there: every replica reads it"),
        Check("identity", partial(identity, arguments), "see docs/compatibility.md for what FlashBoot carries"),
    ]


def socket_of(arguments: Sequence[str]) -> str | None:
    """The pod's socket, when the arguments are ours and right."""
    try:
        found = asked(arguments)
    except BadRequest:
        return None  # `flags` says what is wrong with them
    return found.settings.socket if found else None


def flags(arguments: Sequence[str]) -> str:
    found = _ours(arguments)
    if found.load_format != LOAD_FORMAT:
        raise Odd("wrong", f"--load-format {found.load_format}, not {LOAD_FORMAT}")
    return f"model {found.settings.model}, revision {found.settings.revision}"


def model(arguments: Sequence[str]) -> str:
    path = _ours(arguments).model_path
    if path is None:
        raise Odd("wrong", "no --model-path")
    if not Path(path).is_absolute() and not Path(path).exists():
        raise Odd("note", f"{path} is no local folder", "SGLang would ask a hub; FlashBoot works with local folders")
    check_config(Path(path))
    return path


def identity(arguments: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """As the first rank computes it, before anything is loaded. Publishes SGLang's configuration in this process."""
    found = _ours(arguments)
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
    from sglang.srt.server_args import prepare_server_args

    from flashboot_agent.engine.identity import identity_of
    from flashboot_agent.engine.support import require_supported

    server = prepare_server_args(list(arguments))
    server.resolve_once()
    ranks = SpawnRanks(world_rank=spawn_world_rank(server, tp_rank=0, pp_rank=0), gpu_id=0)
    publish(server, role="scheduler", ranks=ranks)
    config = ModelConfig.from_server_args(server)
    require_supported(config)
    fields = identity_of(found.settings, config)
    return f"{digest_of(fields)} of {len(fields)} fields", fields


def _ours(arguments: Sequence[str]) -> Asked:
    if not arguments:
        raise Odd("skipped", "give the engine's arguments after --")
    found = asked(arguments)
    if found is None:
        raise Odd("wrong", "--model-loader-extra-config has no key flashboot")
    return found
