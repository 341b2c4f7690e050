"""Seed: load as SGLang always does, pack the result into an arena, and go on from there like every attaching engine.

The originals are kept until the agent has sealed the arena. Whatever breaks before that (the agent restarts, the commit
is refused) changes nothing in the model; the agent is asked again and its answer decides.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any, Final

from flashboot_agent.core.errors import (
    BadRequest,
    DeadlineExceeded,
    FlashBootError,
    Retryable,
    SeedFailed,
    UnsupportedModel,
)
from flashboot_agent.engine import rebind, walk
from flashboot_agent.engine.attach import build_on_meta
from flashboot_agent.engine.client import AgentClient, Sealed
from flashboot_agent.engine.log import log
from flashboot_agent.engine.mapping import as_tensor, map_arena, unmap
from flashboot_agent.engine.plan import Plan, plan
from flashboot_agent.engine.preflight import wait_for_weights
from flashboot_agent.engine.settings import EXTRA_CONFIG_KEY, Deadlines
from flashboot_agent.engine.structure import structure_of
from flashboot_agent.wire.layout import Layout, Scalar

ATTEMPTS: Final = 5
RETRY_SECONDS: Final = 2.0


def seed(model_config: Any, device_config: Any, load_config: Any, client: AgentClient) -> Any:
    """The loaded model, its tensors in the arena that it filled.

    Raises DeadlineExceeded when the checkpoint was not put right in time, SeedFailed when SGLang can't load it,
    UnsupportedModel, and what the agent refused with.
    """
    wait_for_weights(model_config.model_path, client, Deadlines.of().preflight)
    shadow = build_on_meta(model_config, load_config)
    walk.require_none_hidden(shadow)
    structure = structure_of(shadow)
    model, stamped = _load(model_config, device_config, load_config)
    planned = plan(walk.tensors(model), client.identity, stamped, structure)
    _rehearse(shadow, model, planned.layout)
    document = planned.layout.to_json()
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


def _rehearse(shadow: Any, model: Any, layout: Layout) -> None:
    """Raises UnsupportedModel when an engine could not attach to this layout; better now than on every other node."""
    walk.require_none_hidden(shadow, model)
    rebind.resolve(shadow, layout)
    rebind.apply_marks(shadow, layout.scalars, walk.marks(shadow))


def _load(model_config: Any, device_config: Any, load_config: Any) -> tuple[Any, dict[str, dict[str, Scalar]]]:
    """SGLang's own load, and what it stamped on modules beside tensors."""
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader.loader import DefaultModelLoader

    before: walk.Marks = {}

    class Watched(DefaultModelLoader):  # type: ignore[misc] # SGLang carries no types
        def load_weights_and_postprocess(self, model: Any, weights: Any, target_device: Any) -> None:
            # The same empty call that an attaching engine makes: only what real weights stamp counts as stamped.
            model.load_weights(iter(()))
            before.update(walk.marks(model))
            DefaultModelLoader.load_weights_and_postprocess(model, weights, target_device)

    extra = {key: value for key, value in load_config.model_loader_extra_config.items() if key != EXTRA_CONFIG_KEY}
    usual = dataclasses.replace(load_config, load_format=LoadFormat.AUTO, model_loader_extra_config=extra)
    try:
        model = Watched(usual).load_model(model_config=model_config, device_config=device_config)
    except FlashBootError:
        raise
    except Exception as error:  # SGLang raises anything; it is reported with its reason and raised on
        raise SeedFailed(f"SGLang could not load {model_config.model_path}: {type(error).__name__}: {error}") from error
    return model, _stamped(before, walk.marks(model))


def _stamped(before: walk.Marks, after: walk.Marks) -> dict[str, dict[str, Scalar]]:
    result: dict[str, dict[str, Scalar]] = {}
    for name, attributes in after.items():
        old = before.get(name, {})
        gone = old.keys() - attributes.keys()
        if gone:
            raise UnsupportedModel(
                f"the load removed {name}.{min(gone)}; FlashBoot can't repeat that on another engine"
            )
        changed = {key: value for key, value in attributes.items() if key not in old or old[key] != value}
        if changed:
            result[name] = changed
    return result


def fill(planned: Plan, document: bytes, client: AgentClient) -> Sealed:
    """Pack and commit until the arena is sealed, by this engine or (after a restart of the agent) by another's work."""
    nbytes = planned.layout.arena_bytes
    trouble: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            if trouble is not None:
                offer = client.wait()
                if isinstance(offer, Sealed):
                    return offer
            pack(planned, client.allocate(nbytes), nbytes)
            return client.commit(document, nbytes)
        except DeadlineExceeded:
            raise
        except (OSError, Retryable) as error:
            log.warning("%s: the arena could not be filled: %s; asking the agent again", client.who, error)
            trouble = error
            client.drop()
            time.sleep(RETRY_SECONDS)
    raise DeadlineExceeded(f"{client.who}: no sealed arena after {ATTEMPTS} attempts; the last ended with: {trouble}")


def pack(planned: Plan, descriptor: int, nbytes: int) -> None:
    """Copy every storage to its place. Takes over the descriptor; nothing of the mapping is left afterwards."""
    import torch

    try:
        mapping = map_arena(descriptor, nbytes, writable=True)
    finally:
        os.close(descriptor)
    target = as_tensor(mapping)
    for storage, place in zip(planned.storages, planned.layout.storages, strict=True):
        if place.bytes:
            source = torch.empty(0, dtype=torch.uint8).set_(storage)
            target[place.offset : place.offset + place.bytes].copy_(source)
            del source
    del target
    unmap(mapping, "pack")
