"""Attach: build the model without memory, and bind its tensors into a sealed arena. No byte is copied, no load runs.

What SGLang's load would have left beside bytes comes from the layout (shadow.py). Shared storages are read-only;
derived and runtime ones are private copies.
"""

from __future__ import annotations

import os
from typing import Any

from flashboot_agent.core.identity import require_equal
from flashboot_agent.engine import rebind, shadow
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
        model = shadow.build(model_config, load_config)
        base = as_tensor(map_arena(offer.descriptor, offer.nbytes, writable=False))
    finally:
        os.close(offer.descriptor)
    require_structure(model, layout.structure)
    shadow.as_loaded(model, layout)
    rebind.install(model, layout, base)
    rebind.verify(model, layout, base)
    return model.eval()
