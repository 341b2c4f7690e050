"""The drain's own parts, without SGLang: what is refused, what is aborted, when it leaves."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashboot_agent.engine import drain

Sent = list[dict[str, Any]]
ENV = {"PYTHONPATH": str(Path(drain.__file__).parents[2])}


class Manager:
    def __init__(self, running: int) -> None:
        self.rid_to_state = {str(number): object() for number in range(running)}
        self.aborted = asyncio.Event()

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        assert abort_all
        self.rid_to_state.clear()
        self.aborted.set()


def begin(draining: drain.Drain, manager: Manager) -> list[str]:
    """What SGLang's event loop does on SIGTERM, twice; returns what SGLang's own handler was called with."""
    called: list[str] = []
    handler = SimpleNamespace(tokenizer_manager=manager)
    for _ in range(2):
        draining.sigterm_hook(lambda handler: called.append("SGLang's own"), handler)
    return called


def ask(draining: drain.Drain, scope: dict[str, Any]) -> Sent:
    sent: Sent = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    gate: Any = draining.middleware_hook(lambda app: application, object())
    asyncio.run(gate(scope, None, send))
    return sent


def http(method: str, path: str) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path}


@pytest.mark.parametrize(
    "scope", [http("POST", "/generate"), http("PUT", "/v1/chat/completions"), {"type": "websocket", "path": "/x"}]
)
def test_new_work_is_taken_before_a_drain_and_refused_after(scope: dict[str, Any]) -> None:
    draining = drain.Drain(30)
    assert ask(draining, scope) == [{"type": "reached"}]
    draining.begun = True
    start, *rest = ask(draining, scope)
    if scope["type"] == "websocket":
        assert (start["type"], start["code"]) == ("websocket.close", 1012)
    else:
        assert start["status"] == 503
        assert (b"retry-after", b"1") in start["headers"]
        assert "shutting down" in json.loads(rest[0]["body"])["error"]["message"]


@pytest.mark.parametrize(
    "scope",
    [
        *(http("GET", "/ready"), http("GET", "/metrics"), http("HEAD", "/health"), http("POST", "/abort_request")),
        {"type": "lifespan"},
    ],
)
def test_probes_and_what_running_requests_need_pass(scope: dict[str, Any]) -> None:
    draining = drain.Drain(30)
    draining.begun = True
    assert ask(draining, scope) == [{"type": "reached"}]


def test_what_runs_too_long_is_aborted_and_what_is_done_is_not() -> None:
    async def story() -> None:
        left = threading.Event()
        draining, manager = drain.Drain(0.02, left.set), Manager(3)
        assert begin(draining, manager) == ["SGLang's own"] * 2
        assert draining.begun
        await asyncio.wait_for(manager.aborted.wait(), 10)
        done = Manager(0)
        begin(drain.Drain(0.02, left.set), done)
        assert await asyncio.to_thread(left.wait, 10)
        await asyncio.sleep(0)
        assert not done.aborted.is_set()

    asyncio.run(story())


def test_a_drain_that_hangs_is_left_once_though_the_loop_is_blocked() -> None:
    left: list[int] = []
    gone = threading.Event()

    def leave() -> None:
        left.append(1)
        gone.set()

    async def story() -> None:
        begin(drain.Drain(0.02, leave), Manager(1))
        assert gone.wait(10)  # blocks the loop, as SGLang does while it waits for its schedulers

    asyncio.run(story())
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.join(10)
    assert left == [1]


@given(st.floats(min_value=1, max_value=86400))
def test_there_is_time_to_run_then_to_end_then_to_leave(grace: float) -> None:
    assert 0 < grace / 2 <= drain.abort_after(grace) < drain.leave_after(grace) < grace
    if grace >= 2 * drain.ENDING_SECONDS:
        assert grace - drain.abort_after(grace) == pytest.approx(drain.ENDING_SECONDS)


STUCK = """
import sys, types
from flashboot_agent.engine import drain

def kill_process_tree(*arguments, **named):
    raise RuntimeError(f"a child that does not die: {named}")

for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["sglang.srt.utils"].kill_process_tree = kill_process_tree
drain._leave()
"""


def test_the_process_ends_even_when_its_children_can_not_be_ended() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, timeout=30, check=False, env=ENV)
    assert done.returncode == 1, done.stderr


def test_before_the_server_serves_sigterm_ends_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        drain.end_at_once_before_serving()
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
        assert ended.value.code == 143
        own = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert own is not signal.SIG_IGN
        drain.end_at_once_before_serving()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
