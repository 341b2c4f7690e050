"""A real agent takes the startup times of an engine from its main process, and shows them to the operator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flashboot_agent.wire import attach
from flashboot_agent.wire.observed_pod import StartupTimes
from tests.component.agents import Cluster, Node, eventually

TIMES = StartupTimes(
    load_weight_milliseconds=250,
    kv_cache_allocation_milliseconds=500,
    cuda_graph_milliseconds=0,
    scheduler_milliseconds=12000,
    tokenizer_milliseconds=15500,
    api_ready_milliseconds=20000,
)


@pytest.fixture
def node() -> Iterator[Node]:
    cluster = Cluster()
    try:
        yield cluster.node("n1")
    finally:
        cluster.close()


def shown(node: Node, uid: str) -> StartupTimes | None:
    pod = node.pod(uid)
    assert pod is not None
    return pod.startup


def test_times_are_shown_stay_and_come_again_after_a_restart_of_the_agent(node: Node) -> None:
    uid = node.publish()
    with node.engine(uid, greet=False) as front:
        front.send(attach.Started(times=TIMES))
        eventually(lambda: shown(node, uid) == TIMES, "the times")
        pod = node.pod(uid)
        assert pod is not None
        assert (pod.phase, pod.hello_at) == ("published", None)  # no rank has asked
        node.kill_agent()
        node.start_agent()
        assert shown(node, uid) is None
    with node.engine(uid, greet=False) as front:
        front.send(attach.Started(times=TIMES))
        eventually(lambda: shown(node, uid) == TIMES, "the times, again")
    later = TIMES.model_copy(update={"load_weight_milliseconds": 7})
    with node.engine(uid, greet=False) as again:
        again.send(attach.Started(times=later))
        eventually(lambda: shown(node, uid) == later, "those of the engine that was started again")


def test_times_are_past_when_the_pods_next_engine_asks_and_stay_when_the_same_comes_again(node: Node) -> None:
    uid = node.publish()
    with node.engine(uid, greet=False) as front:
        front.send(attach.Started(times=TIMES))
        eventually(lambda: shown(node, uid) == TIMES, "the times")
        with node.engine(uid, attached=True):
            eventually(lambda: phase(node, uid) != "published", "an engine that lost its connection")
            assert shown(node, uid) == TIMES
    with node.engine(uid):
        eventually(lambda: phase(node, uid) != "published", "the next engine")
        assert shown(node, uid) is None


def phase(node: Node, uid: str) -> str | None:
    pod = node.pod(uid)
    return pod.phase if pod is not None else None


@pytest.mark.parametrize(
    "said",
    [
        b'{"type":"started","times":{"loadWeightMilliseconds":-1}}',
        TIMES.to_json().replace(b"12000", b"1e12").join([b'{"type":"started","times":', b"}"]),
    ],
)
def test_figures_out_of_bounds_are_refused_and_change_nothing(node: Node, said: bytes) -> None:
    uid = node.publish()
    with node.engine(uid, greet=False) as front:
        front.send(said)
        refused, _ = front.receive()
        assert isinstance(refused, attach.Refused)
        assert refused.problem.reason == "BadRequest"
        assert front.closed()
    assert shown(node, uid) is None


def test_a_rank_can_not_report_and_a_reporter_can_not_ask(node: Node) -> None:
    uid = node.publish()
    with node.engine(uid) as rank:
        rank.send(attach.Started(times=TIMES))
        refused, _ = rank.until(attach.Refused)
        assert "out of order" in refused.problem.message
    with node.engine(uid, greet=False) as front:
        front.send(attach.Started(times=TIMES))
        front.hello()
        refused, _ = front.receive()
        assert isinstance(refused, attach.Refused)
