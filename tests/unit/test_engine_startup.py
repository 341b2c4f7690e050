"""Startup times: from SGLang's figures to the agent, and again to the agent after it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashboot_agent.engine import keeper, startup
from flashboot_agent.wire import attach as wire
from tests.engine.peer import Peer

SGLANG = {
    "load_weight": 0.25,
    "kv_cache_allocation": 0.5,
    "scheduler_e2e": 12.0,
    "cuda_graph": {"prefill": 1.0, "decode": 2.0, "draft_decode": 0.0},
    "tokenizer_e2e": 15.5,
}


@pytest.fixture
def socket_path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fb-"))
    yield folder / "agent.sock"
    shutil.rmtree(folder)


def test_seconds_become_milliseconds_and_graphs_one_sum() -> None:
    times = startup.times_of(SGLANG, 20.0004)
    assert times.model_dump() == {
        "load_weight_milliseconds": 250,
        "kv_cache_allocation_milliseconds": 500,
        "cuda_graph_milliseconds": 3000,
        "scheduler_milliseconds": 12000,
        "tokenizer_milliseconds": 15500,
        "api_ready_milliseconds": 20000,
    }
    assert startup.times_of(SGLANG, None).api_ready_milliseconds is None


def test_a_process_knows_its_age() -> None:
    first = startup.process_age()
    assert 0 < first < 86400
    assert startup.process_age() >= first


def test_the_times_are_told_once_the_server_is_up_and_again_to_the_next_agent(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.01)
    peer = Peer(socket_path)
    reporter = startup.Reporter(str(socket_path), "pod p", SGLANG)
    seen: list[tuple[str, object]] = []

    def set_to(name: str, value: object) -> None:
        reporter.state_hook(lambda manager, name, value: seen.append((name, value)), object(), name, value)

    set_to("_server_status", SimpleNamespace(name="Starting"))
    set_to("_gracefully_exit", False)
    assert reporter.telling is None
    up = SimpleNamespace(name="Up")
    set_to("_server_status", up)
    peer.wait_for(wire.Started)
    set_to("_server_status", up)
    assert len(seen) == 4
    peer.close()
    peer = Peer(socket_path)
    peer.wait_for(wire.Started)
    (told,) = [message for message in peer.seen if isinstance(message, wire.Started)]
    assert told.times.load_weight_milliseconds == 250
    assert told.times.api_ready_milliseconds
    assert reporter.telling is not None
    reporter.telling.stop()
    peer.close()
