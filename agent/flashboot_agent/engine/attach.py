"""Attach: build the model without memory, and bind its tensors into a sealed arena. No byte is copied or loaded.

SGLang's traps on this way, each held by a test: the process-wide rotary cache must not keep modules of the meta device;
what `load_weights` leaves on a model beside weights must be there (it is called with no weights, which writes nothing);
scalars that the seed's load stamped are applied; models with a post-load fixup of their own are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flashboot_agent.core.errors import UnsupportedModel
from flashboot_agent.core.identity import require_equal
from flashboot_agent.engine import rebind, walk
from flashboot_agent.engine.client import AgentClient, Sealed
from flashboot_agent.engine.mapping import as_tensor, map_arena, parse_layout
from flashboot_agent.engine.structure import require_structure


def attach(offer: Sealed, model_config: Any, load_config: Any, client: AgentClient) -> Any:
    """The model over the arena. Takes over `offer.descriptor`.

    Raises IdentityMismatch, UnsupportedModel, BadRequest.
    """
    try:
        layout = parse_layout(offer.layout)
        require_equal(client.identity, layout.identity, whose="arena")
        model = build_on_meta(model_config, load_config)
        base = as_tensor(map_arena(offer.descriptor, offer.nbytes, writable=False))
    finally:
        os.close(offer.descriptor)
    require_structure(model, layout.structure)
    walk.require_none_hidden(model)
    rebind.install(model, layout, base)
    rebind.apply_marks(model, layout.scalars, walk.marks(model))
    rebind.verify(model, layout, base)
    return model.eval()


def build_on_meta(model_config: Any, load_config: Any) -> Any:
    """The model's structure as SGLang's default loader makes it, without memory."""
    import torch
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
    from sglang.srt.model_loader.utils import set_default_torch_dtype

    quant_config = _get_quantization_config(model_config, load_config)
    with _rotary_cache_kept(), set_default_torch_dtype(model_config.dtype), torch.device("meta"):
        model = _initialize_model(model_config, load_config, quant_config)
        require_no_fixup(model)
        model.load_weights(iter(()))
    return model


def require_no_fixup(model: Any) -> None:
    """Raises UnsupportedModel for a model that derives tensors after its load."""
    if hasattr(model, "post_load_weights"):
        raise UnsupportedModel(f"{type(model).__name__} derives tensors after its load (post_load_weights)")


@contextmanager
def _rotary_cache_kept() -> Iterator[None]:
    """SGLang shares rotary modules through a dictionary of the process; ours on the meta device must not stay in it."""
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT

    saved = dict(_ROPE_DICT)
    _ROPE_DICT.clear()
    try:
        yield
    finally:
        _ROPE_DICT.clear()
        _ROPE_DICT.update(saved)
