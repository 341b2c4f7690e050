"""Late writers: everything in SGLang that would write into weights after the load, refused with a clear word.

The weights are shared and read-only; without this the MMU would end the engine with a signal. Updates of running
weights are the business of WeightUpdate, through the agent.

Three rings. The front: requests whose answer can't say no, refused in the process that listens. The scheduler:
requests whose answer can. And the funnels below it, through which whatever comes by another way (a remote call, a
re-balancing of experts) has to pass. What is left needs a flag that support.py refuses at the start.
tests/engine/test_late_writers.py sorts every route, every request and every caller of a loader into one of these, or
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from flashboot_agent.core.errors import Refused
from flashboot_agent.engine.session import is_ours

Hook = Callable[..., Any]

UPDATER: Final = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
CONTROL: Final = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
RUNNER: Final = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
EXPERTS: Final = "sglang.srt.eplb.expert_location_updater.ExpertLocationUpdater.update"

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

TELLING: Final = (
    *("update_weights_from_disk", "load_weights_from_distributed", "update_weights_from_tensor"),
    "update_weights_from_ipc",
)
"""Methods of a model runner's updater that return (success, message)."""

RAISING: Final = ("begin_weight_update", "end_weight_update")
"""Methods of a model runner's updater that return nothing."""

READING_CHECKS: Final = frozenset({"snapshot", "compare", "checksum"})


class LateWrite(Refused):
    """A request to write into shared weights."""

    reason = "BadRequest"


def message(operation: str) -> str:
    return (
        f"{operation} is refused: the weights of this engine lie in a FlashBoot arena, shared and read-only. "
        "Start an engine without FlashBoot's flags to use it."
    )


def refuse_update(operation: str) -> Hook:
    """An AROUND hook that answers `success=False` while the engine is ours."""

    def hook(original: Hook, *arguments: Any, **named: Any) -> Any:
        if not is_ours():
            return original(*arguments, **named)
        from sglang.srt.managers import io_struct

        extra = {"num_paused_requests": 0} if operation == "update_weights_from_disk" else {}
        return getattr(io_struct, ANSWERS[operation])(success=False, message=message(operation), **extra)

    return hook


def refuse_telling(operation: str) -> Hook:
    """An AROUND hook that returns (False, why) while the engine is ours."""

    def hook(original: Hook, *arguments: Any, **named: Any) -> Any:
        return (False, message(operation)) if is_ours() else original(*arguments, **named)

    return hook


def refuse_raising(operation: str, *, front: bool = False) -> Hook:
    """An AROUND hook that raises LateWrite while the engine is ours. `front`: in the process that listens, where no
    model is loaded; it gets these hooks only if the engine is ours."""

    def hook(original: Hook, *arguments: Any, **named: Any) -> Any:
        if not front and not is_ours():
            return original(*arguments, **named)
        raise LateWrite(message(operation))

    return hook


def check_weights(original: Hook, manager: Any, request: Any, *arguments: Any, **named: Any) -> Any:
    """Around the updater's check_weights, one action of which fills the weights with random numbers."""
    if not is_ours() or request.action in READING_CHECKS:
        return original(manager, request, *arguments, **named)
    from sglang.srt.managers import io_struct

    return io_struct.CheckWeightsReqOutput(success=False, message=message(f"weights_checker {request.action}"))


def scheduler_hooks() -> dict[str, Hook]:
    """Target → AROUND hook, for processes that run a scheduler."""
    hooks = {f"{UPDATER}.{name}": refuse_update(name) for name in ANSWERS}
    hooks |= {f"{UPDATER}.{name}": refuse_raising(name) for name in MEMORY}
    hooks[f"{UPDATER}.check_weights"] = check_weights
    hooks |= {f"{RUNNER}.{name}": refuse_telling(name) for name in TELLING}
    hooks |= {f"{RUNNER}.{name}": refuse_raising(name) for name in RAISING}
    hooks[EXPERTS] = refuse_raising("moving experts between ranks")
    return hooks


def server_hooks() -> dict[str, Hook]:
    """Target → AROUND hook, for the process that listens for requests to an engine of ours."""
    return {f"{CONTROL}.{name}": refuse_raising(name, front=True) for name in MEMORY}
