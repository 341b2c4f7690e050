"""Who in SGLang may write into weights after the load, all of them: routes, requests, callers of loaders.

The tables below sort everything that SGLang 0.5.23 has; what the next version adds is in none of them, and fails here
until somebody has read what it does.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashboot_agent.core.errors import FlashBootError, UnsupportedModel
from flashboot_agent.engine import guard, support
from tests.engine import runtime


def words(text: str) -> set[str]:
    return set(text.split())


REFUSED = {
    *("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor"),
    *("update_weights_from_ipc", "begin_weight_update", "end_weight_update"),
    *("release_memory_occupation", "resume_memory_occupation"),
    "weights_checker",  # one of its actions
}
"""Routes that the guard refuses; tests/engine/test_server.py asks a real server."""

NEEDS_A_FLAG = {
    "load_lora_adapter": "--enable-lora",
    "load_lora_adapter_from_tensors": "--enable-lora",
    "unload_lora_adapter": "--enable-lora",
    "scale_elastic_ep": "--elastic-ep-backend",
}
"""Routes that do nothing without a flag with which FlashBoot refuses to start."""

READ = {
    "set_internal_state": "limits of the scheduler",
    "pd_role_switch": "prefill or decode; the model stays",
    "update_weight_version": "a label",
    "init_weights_update_group": "a process group; what would come through it is refused",
    "destroy_weights_update_group": "that group",
    "init_weights_send_group_for_remote_instance": "a process group for reading",
    "send_weights_to_remote_instance": "reads the weights",
    "get_remote_instance_transfer_engine_info": "addresses for reading",
    "remote_instance_transfer_engine_info": "addresses for reading",
    "get_weights_by_name": "reads the weights",
}
"""Routes with a name that sounds like it; they write into no weight."""

HARMLESS = words(
    "ready health health_generate get_model_info model_info get_server_info server_info generate encode classify "
    "flush_cache add_external_corpus remove_external_corpus list_external_corpora hicache/storage-backend/clear "
    "hicache/storage-backend get_hicache_l3_cache_layout start_profile stop_profile set_trace_level freeze_gc "
    "start_expert_distribution_record stop_expert_distribution_record dump_expert_distribution_record slow_down "
    "open_session close_session configure_logging abort_request parse_function_call separate_reasoning "
    "pause_generation continue_generation v1/completions v1/chat/completions v1/embeddings v1/classify v1/tokenize "
    "tokenize v1/detokenize detokenize v1/audio/transcriptions v1/realtime v1/models v1/models/{model:path} v1/score "
    "v1/decisions v1/responses v1/responses/{response_id} v1/responses/{response_id}/cancel v1/rerank api/chat "
    "api/generate api/tags api/show v1/messages v1/messages/count_tokens v1/systemone ping invocations "
    "vertex_generate v1/loads is_scaling_elastic_ep openapi.json docs docs/oauth2-redirect redoc"
) | {""}
"""Requests for tokens and for words about the server."""


def paths(routes: Iterable[Any]) -> Iterator[str]:
    """Of the routes and of the routers that are included among them."""
    for route in routes:
        if hasattr(route, "path"):
            yield route.path
        else:
            yield from paths(route.original_router.routes)


def test_every_route_is_sorted() -> None:
    from sglang.srt.entrypoints import http_server

    found = {path.strip("/") for path in paths(http_server.app.routes)}
    assert found == REFUSED | NEEDS_A_FLAG.keys() | READ.keys() | HARMLESS


WRITING_REQUESTS = {
    *("UpdateWeightFromDiskReqInput", "UpdateWeightsFromDistributedReqInput", "UpdateWeightsFromTensorReqInput"),
    *("UpdateWeightsFromIPCReqInput", "BeginWeightUpdateReqInput", "EndWeightUpdateReqInput"),
    *("ReleaseMemoryOccupationReqInput", "ResumeMemoryOccupationReqInput", "CheckWeightsReqInput"),
}
"""Handled by the scheduler's updater, where the guard is."""

FLAGGED_REQUESTS = {
    *("LoadLoRAAdapterReqInput", "LoadLoRAAdapterFromTensorsReqInput", "UnloadLoRAAdapterReqInput"),
    "ScaleElasticEPReqInput",
}

OTHER_REQUESTS = words(
    "TokenizedGenerateReqInput TokenizedEmbeddingReqInput BatchTokenizedGenerateReqInput FlushCacheReqInput "
    "BatchTokenizedEmbeddingReqInput ClearHiCacheReqInput AttachHiCacheStorageReqInput DetachHiCacheStorageReqInput "
    "AbortReq OpenSessionReqInput CloseSessionReqInput InitWeightsUpdateGroupReqInput ShutdownReq FreezeGCReq "
    "DestroyWeightsUpdateGroupReqInput "
    "InitWeightsSendGroupForRemoteInstanceReqInput SendWeightsToRemoteInstanceReqInput UpdateWeightVersionReqInput "
    "GetWeightsByNameReqInput SlowDownReqInput PdRoleSwitchReqInput ProfileReq "
    "GetInternalStateReq SetInternalStateReq GetHiCacheL3LayoutReq RpcReqInput ExpertDistributionReq "
    "PauseGenerationReqInput ContinueGenerationReqInput ConfigureLoggingReq DumperControlReqInput "
    "AddExternalCorpusReqInput RemoveExternalCorpusReqInput ListExternalCorporaReqInput"
)
"""RpcReqInput calls a method of the scheduler by its name; the writers are methods of its updater, not its own."""


def handlers() -> dict[str, str]:
    """Request → handler, as the scheduler's dispatcher is written."""
    from sglang.srt.managers.scheduler import Scheduler

    source = inspect.getsource(inspect.unwrap(Scheduler.init_request_dispatcher))
    tree = ast.parse(textwrap.dedent(source))
    pairs = [node for node in ast.walk(tree) if isinstance(node, ast.Tuple)]
    return {ast.unparse(pair.elts[0]): ast.unparse(pair.elts[1]) for pair in pairs}


def test_every_request_to_a_scheduler_is_sorted() -> None:
    found = handlers()
    assert found.keys() == WRITING_REQUESTS | FLAGGED_REQUESTS | OTHER_REQUESTS
    guarded = {f"self.weight_updater.{name}" for name in (*guard.ANSWERS, *guard.MEMORY, "check_weights")}
    assert {found[request] for request in WRITING_REQUESTS} == guarded


def test_no_writer_is_a_method_that_a_remote_call_reaches_past_the_guard() -> None:
    from sglang.srt.managers.scheduler import Scheduler

    assert not {*guard.ANSWERS, *guard.MEMORY, *guard.TELLING, *guard.RAISING, "check_weights"} & set(dir(Scheduler))


LOADS = {
    *("load_weights", "load_weights_and_postprocess", "load_weights_only", "default_weight_loader"),
    *("restore_weights_before_loading", "process_weights_after_loading", "postprocess_weights", "post_load_weights"),
}
"""Calls that write into a model."""

START = {"models", "model_loader", "layers", "hardware_backend", "multimodal_gen"}
"""Folders of what runs during a load."""

UPDATER = "model_executor/model_runner_components/weight_updater.py"
CALLERS = {
    (UPDATER, "WeightUpdater"): "its methods are guarded",
    (UPDATER, "_model_load_weights_direct"): "called by WeightUpdater.update_weights_from_tensor",
    ("checkpoint_engine/checkpoint_engine_worker.py", "SGLangCheckpointEngineWorkerExtensionImpl"): "called by "
    "WeightUpdater.update_weights_from_ipc",
    ("model_executor/model_runner.py", "_gather_block_fp8_linear"): "writes into a module of its own",
}


def callers() -> Iterator[tuple[str, str]]:
    """(file, class or function) of every call in LOADS outside of START."""
    import sglang.srt.server_args

    root = Path(sglang.srt.server_args.__file__).parent
    for path in sorted(root.rglob("*.py")):
        where, text = path.relative_to(root), path.read_text()
        if where.parts[0] in START or not any(name in text for name in LOADS):
            continue
        for outer in ast.parse(text).body:
            for call in (node for node in ast.walk(outer) if isinstance(node, ast.Call)):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if name in LOADS:
                    yield str(where), getattr(outer, "name", "<module>")


def test_every_caller_of_a_loader_outside_of_a_load_is_known() -> None:
    assert set(callers()) == CALLERS.keys()


def test_every_writer_of_a_runners_updater_is_guarded() -> None:
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    public = {name for name, value in vars(WeightUpdater).items() if inspect.isfunction(inspect.unwrap(value))}
    others = {
        *("init_weights_update_group", "destroy_weights_update_group"),
        "receive_weights_from_distributed",  # into tensors of its own
    }
    assert {name for name in public if not name.startswith("_")} - others == {*guard.TELLING, *guard.RAISING}


def test_moving_experts_has_one_door_and_it_is_guarded() -> None:
    from sglang.srt.eplb import eplb_manager
    from sglang.srt.model_executor.model_runner import ModelRunner

    assert "expert_location_updater.update(" in inspect.getsource(eplb_manager.update_expert_location_with_recovery)
    assert "get_exec().moe.enable_eplb" in inspect.getsource(ModelRunner)


def test_lora_adapters_and_elastic_experts_need_their_flags() -> None:
    from sglang.srt.entrypoints import elastic_ep
    from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin

    for name in ("load_lora_adapter", "load_lora_adapter_from_tensors", "unload_lora_adapter"):
        assert "if not get_lora().enable_lora" in inspect.getsource(getattr(TokenizerControlMixin, name))
    assert "elastic_ep_backend is None" in inspect.getsource(elastic_ep.scale_elastic_ep)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"enable_eplb": True}, "--enable-eplb: moves experts"),
        ({"init_expert_location": "/tmp/map.json"}, "--init-expert-location: moves experts"),
        ({"ep_num_redundant_experts": 2}, "--ep-num-redundant-experts: moves experts"),
        ({"elastic_ep_backend": "mooncake"}, "--elastic-ep-backend: moves experts"),
        ({"enable_lora": True}, "--enable-lora"),
        ({"checkpoint_engine_wait_weights_before_ready": True}, "--checkpoint-engine-wait-weights-before-ready"),
    ],
)
def test_flags_that_bring_late_writers_are_refused_at_the_start(
    arguments: dict[str, Any], says: str, checkpoints: dict[str, Path]
) -> None:
    from sglang.srt.runtime_context import get_context

    config = runtime.publish(checkpoints["qwen3_moe"])
    get_context().override("test", **arguments)
    with pytest.raises(UnsupportedModel, match=says):
        support.require_supported(config)


# What the guard answers -----------------------------------------------------------------------------------------


@pytest.fixture
def as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "is_ours", lambda: True)


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("SGLang's own method was reached")


@pytest.mark.parametrize("operation", sorted(guard.ANSWERS))
def test_an_update_of_the_weights_is_answered_with_no(operation: str, as_ours: None) -> None:
    answer = guard.refuse_update(operation)(never, SimpleNamespace(), SimpleNamespace())
    assert answer.success is False
    assert answer.message.startswith(f"{operation} is refused: ")
    assert "read-only" in answer.message


@pytest.mark.parametrize("operation", guard.TELLING)
def test_the_funnel_below_the_requests_says_no_too(operation: str, as_ours: None) -> None:
    success, message = guard.refuse_telling(operation)(never, SimpleNamespace())
    assert success is False
    assert "read-only" in message


@pytest.mark.parametrize("front", [True, False])
def test_what_has_no_answer_that_could_say_no_is_an_error(front: bool, as_ours: None) -> None:
    with pytest.raises(FlashBootError, match=r"release_memory_occupation is refused"):
        guard.refuse_raising("release_memory_occupation", front=front)(never)


def test_a_check_that_writes_is_refused_and_others_go_on(as_ours: None) -> None:
    assert guard.check_weights(never, None, SimpleNamespace(action="reset_tensors")).success is False
    assert guard.check_weights(lambda *_: "done", None, SimpleNamespace(action="checksum")) == "done"


def test_engines_that_are_not_ours_are_not_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "is_ours", lambda: False)
    hooks: list[Callable[..., Any]] = [
        guard.refuse_update("update_weights_from_disk"),
        guard.refuse_telling("update_weights_from_disk"),
        guard.refuse_raising("release_memory_occupation"),
    ]
    assert [hook(lambda *_: "done", None, None) for hook in hooks] == ["done"] * 3
    assert guard.check_weights(lambda *_: "done", None, SimpleNamespace(action="reset_tensors")) == "done"


def test_a_runners_updater_in_this_process_is_behind_the_guard(hooked: None, as_ours: None) -> None:
    from sglang.srt.eplb.expert_location_updater import ExpertLocationUpdater
    from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

    assert WeightUpdater.update_weights_from_disk(SimpleNamespace(), "/m", "auto")[0] is False
    with pytest.raises(guard.LateWrite, match="begin_weight_update is refused"):
        WeightUpdater.begin_weight_update(SimpleNamespace())
    with pytest.raises(guard.LateWrite, match="moving experts between ranks is refused"):
        ExpertLocationUpdater().update({}, None, [], 1, 0)
