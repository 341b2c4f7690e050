"""The TCP transport against damage on the way and peers that have died."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from flashboot_agent._native import BYTES_IN, REFETCHED, SERVE_LIMIT
from flashboot_agent.core.errors import (
    DeadlineExceeded,
    FlashBootError,
    ParentUnreachable,
)
from flashboot_agent.transport.base import Progress
from flashboot_agent.transport.tcp import PullSettings
from flashboot_agent.transport.tcp_server import TcpServer
from flashboot_agent.wire import frames
from tests.component.agents import eventually
from tests.component.memory_catalog import MIB, MemoryArena, MemoryCatalog, Target
from tests.component.proxy import ChunkProxy
from tests.component.tcp_peers import (
    DATA,
    QUICK,
    Start,
    fill,
    pull_from,
)


@pytest.fixture
def proxy(start: Start) -> Iterator[ChunkProxy]:
    made = ChunkProxy(start().address)
    yield made
    made.close()


def test_a_flipped_byte_is_seen_by_its_digest_and_fetched_again(proxy: ChunkProxy) -> None:
    proxy.inject("flip", 2 * MIB + 5)
    pull, target = pull_from(proxy.address), Target(len(DATA))
    steps: list[Progress] = []
    sink = target.sink(pull)
    while not steps or steps[-1].state == "going":
        steps.append(pull.advance(sink, 1))
    assert (steps[-1].state, steps[-1].offset) == ("differs", 2 * MIB)
    fill(pull, target)
    assert target.data == DATA
    assert target.marks.counter(REFETCHED) == 1
    assert proxy.happened == [("flip", 2 * MIB + 5)]


@pytest.mark.parametrize("fault", ["cut", "cut_in_header"])
def test_a_parent_that_dies_in_mid_frame_is_unreachable_and_the_next_goes_on_from_there(
    proxy: ChunkProxy, fault: str
) -> None:
    proxy.inject(fault, 2 * MIB + 7)  # type: ignore[arg-type]
    target = Target(len(DATA))
    with pytest.raises(ParentUnreachable, match=r"parent-1 .*pulling lane 0"):
        fill(pull_from(proxy.address), target)
    assert target.data[: 2 * MIB] == DATA[: 2 * MIB]
    assert 2 * MIB <= target.marks.received(0) <= 2 * MIB + 7
    assert fill(pull_from(proxy.address), target).data == DATA
    assert target.marks.counter(BYTES_IN) == len(DATA), "nothing twice, not even inside of a chunk"


def test_a_parent_that_goes_silent_is_given_up_in_time(proxy: ChunkProxy) -> None:
    proxy.inject("stall", 3 * MIB + 11)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"parent-1 .*lane 0"):
        fill(pull_from(proxy.address))
    assert time.monotonic() - began < 30, "the deadline is 0.5 s; a whole machine may be slow"


@pytest.mark.parametrize(
    ("settings", "request_bytes", "in_flight"), [(QUICK, MIB, 2), (PullSettings(in_flight=5), 64 << 10, 5)]
)
def test_two_requests_are_in_flight_or_as_many_as_are_set(
    growing: MemoryArena, settings: PullSettings, request_bytes: int, in_flight: int
) -> None:
    """While the parent has no byte, they pile up; then they go on to the end, and there are never more."""
    server = TcpServer(MemoryCatalog(growing), "127.0.0.1", 0)
    proxy = ChunkProxy(server.address)
    pull, target = pull_from(proxy.address, settings), Target(len(DATA))
    with contextlib.closing(server), contextlib.closing(proxy), contextlib.closing(pull):
        sink = target.sink(pull, request_bytes=request_bytes)
        what = f"{in_flight} requests without an answer"
        eventually(lambda: pull.advance(sink, 0.05) and proxy.most_unanswered >= in_flight, what)
        growing.marks.fill()
        while pull.advance(sink, 1).state != "done":
            pass
    assert proxy.most_unanswered == in_flight


STALLING = """
import sys
from tests.component.proxy import ChunkProxy
proxy = ChunkProxy(sys.argv[1])
proxy.inject("stall", int(sys.argv[2]))
print(proxy.address, flush=True)
proxy.wait_for("stall", 60)
print("stalled", flush=True)
sys.stdin.read()
"""


def test_a_killed_parent_process_ends_the_stream(proxy: ChunkProxy) -> None:
    """The proxy as a process of its own stands for the parent: kill -9 while it holds a frame half sent."""
    command = [sys.executable, "-c", STALLING, proxy.address, str(MIB + 3)]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            failures: list[FlashBootError] = []

            def run() -> None:
                try:
                    fill(pull_from(address, PullSettings(silence=60)))
                except FlashBootError as error:
                    failures.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            assert process.stdout.readline() == "stalled\n"
            process.send_signal(signal.SIGKILL)
            thread.join(30)
            assert [type(failure) for failure in failures] == [ParentUnreachable]
        finally:
            process.kill()


def test_both_sides_of_the_wire_know_the_same_limit() -> None:
    assert SERVE_LIMIT == frames.MAX_PULL


@pytest.mark.parametrize(
    "bad",
    [{"in_flight": 1}, {"in_flight": 65}, {"poll": 61}, {"silence": 0}, {"overdue_floor": 0}],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        PullSettings(**bad)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:70000"])
def test_no_connection_names_the_node(address: str) -> None:
    with pytest.raises(ParentUnreachable, match="parent parent-1"):
        pull_from(address)
