"""Late writers: everything in SGLang that would write into weights after the load, refused with a clear word.

The weights are shared and read-only; without this the MMU would end the engine with a signal. Updates of running
weights are the business of WeightUpdate, through the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from flashboot_agent.core.errors import Refused
from flashboot_agent.engine.session import is_ours

UPDATER: Final = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
CONTROL: Final = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"

ANSWERS: Final = {
    "update_weights_from_disk": "UpdateWeightFromDiskReqOutput",
    "update_weights_from_distributed": "UpdateWeightsFromDistributedReqOutput",
    "update_weights_from_tensor": "UpdateWeightsFromTensorReqOutput",
    "update_weights_from_ipc": "UpdateWeightsFromIPCReqOutput",
    "begin_weight_update": "BeginWeightUpdateReqOutput",
    "end_weight_update": "EndWeightUpdateReqOutput",
}
"""Method of the scheduler's updater → class of SGLang's answer, which has `success` and `message`."""

MEMORY: Final = ("release_memory_occupation", "resume_memory_occupation")
"""These have no answer that could say no; refused in the server's main process, where an error becomes HTTP 400."""

READING_CHECKS: Final = frozenset({"snapshot", "compare", "checksum"})


class LateWrite(Refused):
    """A request to write into shared weights."""

    reason = "BadRequest"


def message(operation: str) -> str:
    return (
        f"{operation} is refused: the weights of this engine lie in a FlashBoot arena, shared and read-only. "
        "Start an engine without FlashBoot's flags to use it."
    )


def refuse_update(operation: str) -> Callable[..., Any]:
    """An AROUND hook that answers `success=False` while the engine is ours."""

    def hook(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if not is_ours():
            return original(*arguments, **named)
        from sglang.srt.managers import io_struct

        extra = {"num_paused_requests": 0} if operation == "update_weights_from_disk" else {}
        return getattr(io_struct, ANSWERS[operation])(success=False, message=message(operation), **extra)

    return hook


def refuse_memory(operation: str, ours: Callable[[], bool]) -> Callable[..., Any]:
    """An AROUND hook that raises LateWrite while the engine is ours."""

    def hook(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if not ours():
            return original(*arguments, **named)
        raise LateWrite(message(operation))

    return hook


def check_weights(original: Callable[..., Any], manager: Any, request: Any, *arguments: Any, **named: Any) -> Any:
    """Around the updater's check_weights, one action of which fills the weights with random numbers."""
    if not is_ours() or request.action in READING_CHECKS:
        return original(manager, request, *arguments, **named)
    from sglang.srt.managers import io_struct

    return io_struct.CheckWeightsReqOutput(success=False, message=message(f"weights_checker {request.action}"))


def scheduler_hooks() -> dict[str, Callable[..., Any]]:
    """Target → AROUND hook, for processes that run a scheduler."""
    hooks = {f"{UPDATER}.{name}": refuse_update(name) for name in ANSWERS}
    hooks |= {f"{UPDATER}.{name}": refuse_memory(name, is_ours) for name in MEMORY}
    hooks[f"{UPDATER}.check_weights"] = check_weights
    return hooks


def server_hooks() -> dict[str, Callable[..., Any]]:
    """Target → AROUND hook, for the main process of a server whose command line is ours."""
    return {f"{CONTROL}.{name}": refuse_memory(name, lambda: True) for name in MEMORY}
