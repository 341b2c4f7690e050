"""What SGLang 0.5.23 does while it starts, serves and ends, as far as the plug-in relies on it."""

from __future__ import annotations

import inspect
from typing import Any

from flashboot_agent.engine import drain, startup
from tests.engine.test_contract import source_of

# The memory baseline --------------------------------------------------------------------------------------------


def test_one_sample_gets_the_sum_over_all_models_of_the_process() -> None:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.speculative.base_spec_worker import EagleDraftWorkerBase

    pools = source_of(Scheduler.init_target_memory_pool)
    assert "preloaded_weights_bytes = self.tp_worker.preloaded_weights_bytes" in pools
    assert "preloaded_weights_bytes += self.draft_worker.preloaded_weights_bytes" in pools
    assert pools.count("account_preloaded_weights") == 1
    for worker in (TpModelWorker, EagleDraftWorkerBase):
        assert "sum(runner.preloaded_weights_bytes for runner in" in source_of(worker.preloaded_weights_bytes.fget)


def test_the_sample_is_the_least_of_all_ranks_and_drafts_do_not_take_part() -> None:
    from sglang.srt.distributed.bootstrap import measure_pre_model_load_memory

    assert "world_size > 1 and not is_draft_worker" in source_of(measure_pre_model_load_memory)


# The start ------------------------------------------------------------------------------------------------------


def test_startup_times_are_put_together_once_when_all_schedulers_are_up() -> None:
    from sglang.srt.entrypoints import engine

    launch = source_of(engine.Engine._launch_subprocesses)
    assert launch.index("wait_for_ready()") < launch.index("cls._set_startup_time(")
    told = source_of(engine.Engine._set_startup_time)
    assert told.index("build_engine_startup_time(") < told.index("set_startup_time(startup_time)")
    assert "_launch_subprocesses(" in inspect.getsource(engine.Engine.__init__)


def test_startup_times_have_the_known_phases_in_seconds() -> None:
    from sglang.srt.observability.startup_time import build_engine_startup_time, build_scheduler_startup_time

    rank = build_scheduler_startup_time(
        target_load_weight=1,
        draft_load_weight=0.5,
        kv_cache_allocation=2,
        scheduler_e2e=9,
        target_cuda_graph={"decode": 3.0},
        draft_cuda_graph=None,
    )
    made = inspect.unwrap(build_engine_startup_time)([rank, {**rank, "kv_cache_allocation": 4}], tokenizer_e2e=10)
    assert startup.times_of(made, 12).model_dump() == {
        "load_weight_milliseconds": 1500,
        "kv_cache_allocation_milliseconds": 4000,
        "cuda_graph_milliseconds": 3000,
        "scheduler_milliseconds": 9000,
        "tokenizer_milliseconds": 10000,
        "api_ready_milliseconds": 12000,
    }


def test_ready_means_that_the_status_is_up_and_every_change_passes_one_method() -> None:
    from sglang.srt.managers.tokenizer_manager import ServerStatus, TokenizerManager

    assert "self.server_status == ServerStatus.Up" in source_of(TokenizerManager.is_healthy)
    setter = source_of(TokenizerManager.server_status.fset)
    assert '_set_engine_state_field("_server_status", value)' in setter
    assert ServerStatus.Up.name == "Up"


def test_the_process_that_listens_is_the_one_that_launched_unless_there_are_several() -> None:
    from sglang.srt.entrypoints import http_server

    text = source_of(http_server._setup_and_run_http_server)
    assert "if get_serving().tokenizer_worker_num == 1:" in text
    assert "tokenizer_manager.set_server_stop_hook" in text


# The end --------------------------------------------------------------------------------------------------------


def test_sigterm_sets_a_flag_and_a_watchdog_waits_for_requests_without_a_deadline() -> None:
    from sglang.srt.managers import tokenizer_manager
    from sglang.srt.managers.tokenizer_manager import SignalHandler, TokenizerManager

    assert "self.tokenizer_manager.gracefully_exit = True" in source_of(SignalHandler.sigterm_handler)
    assert "add_signal_handler(signal.SIGTERM, signal_handler.sigterm_handler)" in source_of(
        TokenizerManager.auto_create_handle_loop
    )
    watchdog = source_of(TokenizerManager.sigterm_watchdog)
    assert "len(self.rid_to_state)" in watchdog
    assert watchdog.count("await asyncio.sleep(5)") == 2
    assert watchdog.index("remain_num_req > 0") < watchdog.index("ShutdownReq()") < watchdog.index("_server_stop_hook")
    assert tokenizer_manager._SCHEDULER_EXIT_TIMEOUT_SECS == 15
    assert drain.ENDING_SECONDS >= 5


def test_everything_that_runs_can_be_aborted_at_once() -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    assert list(inspect.signature(TokenizerManager.abort_request).parameters) == ["self", "rid", "abort_all"]
    assert "AbortReq(rid=rid, abort_all=abort_all)" in source_of(TokenizerManager.abort_request)


def test_an_application_builds_its_middleware_when_it_begins_to_serve() -> None:
    import asyncio

    from fastapi.applications import FastAPI

    application = FastAPI()
    assert application.middleware_stack is None
    draining = drain.Drain(30)
    built: list[Any] = []

    def around(app: Any) -> Any:
        built.append(app)
        return draining.middleware_hook(FastAPI.build_middleware_stack, app)

    application.build_middleware_stack = lambda: around(application)
    draining.begun = True
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": [], "query_string": b""}
    asyncio.run(application(scope, None, send))
    assert built == [application]
    assert sent[0]["status"] == 503


# Engines over several pods --------------------------------------------------------------------------------------


def test_a_pod_that_is_not_the_first_listens_once_its_schedulers_are_up() -> None:
    """With a FastAPI application, on which we put `/ready`; there is none of SGLang's."""
    from sglang.srt.entrypoints import engine
    from sglang.srt.utils.common import launch_dummy_health_check_server

    launch = source_of(engine.Engine._launch_subprocesses)
    follower = launch[launch.index("get_parallel().node_rank >= 1:") :]
    assert follower.index("wait_for_ready()") < follower.index("launch_dummy_health_check_server(")
    served = source_of(launch_dummy_health_check_server)
    assert "FastAPI(" in served
    assert '"/ready"' not in served


def test_all_ranks_meet_before_any_of_them_loads() -> None:
    """The operator takes an engine that has weights for one that has met the others."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.model_runner import ModelRunner

    start = source_of(Scheduler.__init__)
    assert start.index("bootstrap.init_parallel_runtime(") < start.index("self.init_model_worker()")
    assert "measure_pre_model_load_memory(" in source_of(ModelRunner.init_torch_distributed)
