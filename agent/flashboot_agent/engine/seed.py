"""Seed: load as SGLang always does, move the result into an arena, and go on from there like every attaching engine.

The model is complete at every moment: each storage's bytes lie in the model's own memory, or in an arena that this
process maps. Whatever breaks before the seal (the agent restarts, the commit is refused) loses nothing; the agent is
asked again and its answer decides. docs/design/0010 says why it is done so.
"""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field
from typing import Any, Final

from flashboot_agent.core.errors import (
    BadRequest,
    DeadlineExceeded,
    FlashBootError,
    Retryable,
    SeedFailed,
)
from flashboot_agent.engine import marks, rebind, shadow, walk
from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.deadlines import Deadlines
from flashboot_agent.engine.log import log
from flashboot_agent.engine.mapping import as_tensor, map_arena
from flashboot_agent.engine.offer import Sealed
from flashboot_agent.engine.pack import Packing
from flashboot_agent.engine.plan import Plan, plan
from flashboot_agent.engine.preflight import wait_for_weights
from flashboot_agent.engine.settings import EXTRA_CONFIG_KEY
from flashboot_agent.engine.structure import structure_of
from flashboot_agent.wire.layout import Layout

ATTEMPTS: Final = 5
RETRY_SECONDS: Final = 2.0


def seed(model_config: Any, device_config: Any, load_config: Any, client: AgentClient) -> Any:
    """The loaded model, its tensors in the arena that it filled.

    Raises DeadlineExceeded when the checkpoint was not put right in time, SeedFailed when SGLang can't load it,
    UnsupportedModel, and what the agent refused with.
    """
    wait_for_weights(model_config.model_path, client, Deadlines.of().preflight)
    empty = shadow.build(model_config, load_config)
    structure = structure_of(empty)
    model, left = _load(model_config, device_config, load_config)
    planned = plan(walk.tensors(model), client.identity, left.stamped, structure, left.deleted)
    _rehearse(empty, model, planned.layout)
    document = planned.layout.to_bytes()
    sealed = fill(planned, document, client)
    try:
        if sealed.layout != document:
            raise BadRequest(f"{sealed.arena} was sealed with another layout than this engine planned; same identity?")
        base = as_tensor(map_arena(sealed.descriptor, sealed.nbytes, writable=False))
    finally:
        os.close(sealed.descriptor)
    rebind.repoint(planned.tensors, planned.layout, base)
    rebind.verify(model, planned.layout, base)
    return model.eval()


def _rehearse(empty: Any, model: Any, layout: Layout) -> None:
    """Raises UnsupportedModel when an engine could not attach to this layout; better now than on every other node."""
    walk.require_none_hidden(empty, model)
    shadow.as_loaded(empty, layout)
    rebind.resolve(empty, layout)


@dataclass
class Left:
    """What SGLang's load left beside tensors, and what it removed."""

    stamped: marks.Marks = field(default_factory=dict)
    deleted: dict[str, list[str]] = field(default_factory=dict)


def _load(model_config: Any, device_config: Any, load_config: Any) -> tuple[Any, Left]:
    """SGLang's own load, looked at right before and right after."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    left = Left()

    class Watched(DefaultModelLoader):  # type: ignore[misc] # SGLang carries no types
        def load_weights_and_postprocess(self, model: Any, weights: Any, target_device: Any) -> None:
            before = marks.marks(model), marks.names(model)
            DefaultModelLoader.load_weights_and_postprocess(model, weights, target_device)
            left.stamped = marks.stamped(before[0], marks.marks(model))
            left.deleted = marks.deleted(before[1], marks.names(model))

    try:
        return Watched(usual(load_config)).load_model(model_config=model_config, device_config=device_config), left
    except FlashBootError:
        raise
    except Exception as error:  # SGLang raises anything; it is reported with its reason and raised on
        raise SeedFailed(f"SGLang could not load {model_config.model_path}: {type(error).__name__}: {error}") from error


def usual(load_config: Any) -> Any:
    """The configuration of SGLang's default loader, without what is ours."""
    from sglang.srt.configs.load_config import LoadFormat

    extra = {key: value for key, value in load_config.model_loader_extra_config.items() if key != EXTRA_CONFIG_KEY}
    return dataclasses.replace(load_config, load_format=LoadFormat.AUTO, model_loader_extra_config=extra)


def fill(planned: Plan, document: bytes, client: AgentClient) -> Sealed:
    """Move and commit until the arena is sealed, by this engine or (after a restart of the agent) by another's work."""
    nbytes = planned.layout.arena_bytes
    packing = Packing(planned)
    trouble: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            if not client.chosen:  # the connection was lost: in this loop, or while the checkpoint was put right
                offer = client.wait()
                if isinstance(offer, Sealed):
                    return offer
            writable, readable = client.allocate(nbytes)
            packing.move_to(writable, nbytes, readable)
            return client.commit(document, nbytes)
        except DeadlineExceeded:
            raise
        except (OSError, Retryable) as error:
            log.warning("%s: the arena could not be filled: %s; asking the agent again", client.who, error)
            trouble = error
            client.drop()
            time.sleep(RETRY_SECONDS)
    raise DeadlineExceeded(f"{client.who}: no sealed arena after {ATTEMPTS} attempts; the last ended with: {trouble}")
