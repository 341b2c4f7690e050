"""One conversation with the agent per rank and model, opened before SGLang samples memory and used by the loader.

The memory-sampling rule of the architecture is made here: `before_memory_sample` runs right before SGLang measures
the free memory that sizes its KV cache, the least that any rank finds. By then the arenas of all ranks of an attaching
engine are allocated at full size; a seed's do not exist yet. What was there goes into the baseline, from which the
loader reports (engine/baseline.py).
"""

from __future__ import annotations

from typing import Any, Final

from flashboot_agent.core.errors import BadRequest
from flashboot_agent.engine.baseline import Baseline
from flashboot_agent.engine.client import AgentClient, reported
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.identity import identity_of, place_of
from flashboot_agent.engine.settings import LOAD_FORMAT, EngineSettings, settings_of
from flashboot_agent.engine.support import require_supported
from flashboot_agent.wire.place import Place

_clients: dict[tuple[EngineSettings, Place], AgentClient] = {}

baseline: Final = Baseline()
"""Of this process."""


def before_memory_sample(original: Any, runner: Any, *arguments: Any, **named: Any) -> Any:
    """Around ModelRunner.init_torch_distributed, where SGLang takes its memory baseline."""
    settings = published_settings()
    if settings is not None:
        client = client_for(settings, runner.model_config, runner.draft_model_idx)
        with reported(client):
            baseline.sampled(client.place, client.wait_allocated())
    return original(runner, *arguments, **named)


def published_settings() -> EngineSettings | None:
    """Our settings in SGLang's published configuration, when this engine is ours."""
    from sglang.srt.runtime_context import get_model

    model = get_model()
    settings = settings_of(model.model_loader_extra_config)
    if settings is not None and model.load_format != LOAD_FORMAT:
        raise BadRequest(f"FlashBoot's loader config goes with --load-format {LOAD_FORMAT}, not {model.load_format}")
    return settings


def client_for(settings: EngineSettings, model_config: Any, draft_index: int | None = None) -> AgentClient:
    """The client of this process's main model, or of one of its draft models; the first call for it computes the
    identity, before any load.

    Raises UnsupportedModel, UnsupportedEngine; the agent hears of it.
    """
    place = place_of(model_config, draft_index)
    client = _clients.get((settings, place))
    if client is None:
        identity = identity_of(settings, model_config)
        client = _clients[settings, place] = AgentClient(
            settings.socket, Deadlines.of(), settings.clone_timeout_seconds, place, identity
        )
        with reported(client):
            require_supported(model_config)
    return client


def forget(settings: EngineSettings) -> None:
    """Close and drop the clients (tests build several engines in one process)."""
    for key in [key for key in _clients if key[0] == settings]:
        client = _clients.pop(key)
        baseline.forget(client.place)
        client.close()


def is_ours() -> bool:
    """Whether this process's weights are, or are about to be, in an arena."""
    return bool(_clients)
