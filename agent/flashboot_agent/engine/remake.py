"""Objects that a load makes and that can't travel: made anew here, from the model alone. An allow-list.

Each entry says what SGLang's load does, for one class of models and one attribute; a contract test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


def _routed_experts(model: Any) -> Any:
    """Qwen3-MoE: the experts' weights by layer, looked up on first use (by expert re-balancing, which we refuse)."""
    from sglang.srt.models.qwen3_moe import Qwen3MoeSparseMoeBlock
    from sglang.srt.utils import LazyValue

    def weights() -> dict[int, Any]:
        layers = {number: model.model.layers[number].mlp for number in range(model.start_layer, model.end_layer)}
        return {
            number: mlp.get_moe_weights() for number, mlp in layers.items() if isinstance(mlp, Qwen3MoeSparseMoeBlock)
        }

    return LazyValue(weights)


REMAKERS: Final[dict[tuple[str, str, str], Callable[[Any], Any]]] = {
    ("Qwen3MoeForCausalLM", "", "routed_experts_weights_of_layer"): _routed_experts,
}
"""Class of the model, path of the module, attribute → what makes it."""


def remake(model: Any, module: str, attribute: str, mark: str) -> bool:
    """Make the object if its place is on the list and what comes out has the mark; whether it was so."""
    from flashboot_agent.engine.marks import of

    maker = REMAKERS.get((type(model).__name__, module, attribute))
    if maker is None:
        return False
    holder = model.get_submodule(module)
    setattr(holder, attribute, maker(model))
    return of(holder, attribute) == mark
