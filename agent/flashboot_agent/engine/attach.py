"""Attach: build the model without memory, and bind its tensors into a sealed arena. No byte is copied, no load runs.

What SGLang's load would have left beside bytes comes from the layout (shadow.py). Shared storages are read-only;
derived and runtime ones are private copies.
"""

from __future__ import annotations

from typing import Any

from flashboot_agent.engine import rebind, shadow
from flashboot_agent.engine.client import AgentClient
from flashboot_agent.engine.collector import collector_paused
from flashboot_agent.engine.mapping import as_tensor
from flashboot_agent.engine.offer import Sealed, opened
from flashboot_agent.engine.structure import require_structure


def attach(offer: Sealed, model_config: Any, load_config: Any, client: AgentClient) -> Any:
    """The model over the arena. Takes over `offer.descriptor`.

    Raises IdentityMismatch, UnsupportedModel, BadRequest.
    """
    layout, mapping = opened(offer, client.identity)
    with collector_paused():
        model = shadow.build(model_config, load_config)
        require_structure(model, layout.structure)
        shadow.as_loaded(model, layout)
        base = as_tensor(mapping)
        rebind.install(model, layout, base)
        rebind.verify(model, layout, base)
    return model.eval()
