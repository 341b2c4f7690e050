"""One conversation with the agent per engine process, opened before SGLang samples memory and used by the loader.

The memory-sampling rule of the architecture is made here: `before_memory_sample` runs right before SGLang measures
the free memory that sizes its KV cache. By then the arena of an attaching engine is allocated at full size, so the
loader reports exactly its bytes as preloaded; a seed's arena does not exist yet, and it reports 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flashboot_agent.core.errors import BadRequest, FlashBootError
from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.identity import identity_of, place_of
from flashboot_agent.engine.log import log
from flashboot_agent.engine.settings import LOAD_FORMAT, Deadlines, EngineSettings, settings_of
from flashboot_agent.engine.support import require_supported

_clients: dict[EngineSettings, AgentClient] = {}


def before_memory_sample(original: Any, runner: Any, *arguments: Any, **named: Any) -> Any:
    """Around ModelRunner.init_torch_distributed, where SGLang takes its memory baseline."""
    settings = published_settings()
    if settings is not None:
        client = client_for(settings, runner.model_config)
        with reported(client):
            client.wait_allocated()
    return original(runner, *arguments, **named)


def published_settings() -> EngineSettings | None:
    """Our settings in SGLang's published configuration, when this engine is ours."""
    from sglang.srt.runtime_context import get_model

    model = get_model()
    settings = settings_of(model.model_loader_extra_config)
    if settings is not None and model.load_format != LOAD_FORMAT:
        raise BadRequest(f"FlashBoot's loader config goes with --load-format {LOAD_FORMAT}, not {model.load_format}")
    return settings


def client_for(settings: EngineSettings, model_config: Any) -> AgentClient:
    """This process's client; the first call computes the identity, before any load.

    Raises UnsupportedModel, UnsupportedEngine; the agent hears of it.
    """
    client = _clients.get(settings)
    if client is None:
        identity = identity_of(settings, model_config)
        client = _clients[settings] = AgentClient(settings, Deadlines.of(), place_of(model_config), identity)
        with reported(client):
            require_supported(model_config)
    return client


def forget(settings: EngineSettings) -> None:
    """Close and drop the client (tests build several engines in one process)."""
    client = _clients.pop(settings, None)
    if client is not None:
        client.close()


def is_ours() -> bool:
    """Whether this process's weights are, or are about to be, in an arena."""
    return bool(_clients)


@contextmanager
def reported(client: AgentClient) -> Iterator[None]:
    """An error inside that ends the engine is told to the agent first, and then goes on its way."""
    try:
        yield
    except FlashBootError as error:
        log.error("%s: %s: %s", client.who, error.reason, error)
        client.fail(error)
        raise
