"""The simulator against closed forms, and what it says when a plan leaves somebody without a way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashboot_operator.core.fanout.cost import estimate
from flashboot_operator.core.fanout.lanes import chunk_bytes, how_many, lanes_per_root, request_bytes
from flashboot_operator.core.fanout.network import Flow, Network
from flashboot_operator.core.fanout.scenario import Kill, Scenario, Straggler, Unfinished
from flashboot_operator.core.fanout.simulate import simulate

MIB = 1 << 20
A = Scenario(5, 800e6, 700e9, 10e-6, 8.0 * MIB)


@pytest.mark.parametrize("targets", [1, 2, 5])
def test_a_chain_with_two_in_flight(targets: int) -> None:
    """S/B + o + (n−1)(o + c/B): the overhead hides behind the other request."""
    s = replace(A, targets=targets, arena_bytes=96 * A.chunk)
    hop = s.overhead_s + s.chunk / s.link
    assert simulate(s).last_s == pytest.approx(s.ideal_s + s.overhead_s + (targets - 1) * hop, rel=1e-6)


def test_a_chain_with_one_in_flight() -> None:
    """(b + n − 1)(o + c/B)."""
    s = replace(A, arena_bytes=96 * A.chunk, in_flight=1)
    assert simulate(s).last_s == pytest.approx((96 + 4) * (s.overhead_s + s.chunk / s.link), rel=1e-6)


def test_the_estimate_is_that_of_a_chain() -> None:
    got = estimate(A.arena_bytes, A.link, overhead_s=A.overhead_s, lanes=1, chunk=A.chunk, depth=4)
    assert simulate(A).last_s == pytest.approx(got.seconds, rel=0.01)


def test_ports_are_shared_max_min_fair() -> None:
    """One source, two receivers, one of which takes a quarter only: the other gets the rest."""
    network = Network()
    for port, capacity in (("out", 100.0), ("slow", 25.0), ("fast", 100.0)):
        network.port(port, capacity)
    slow, fast = Flow(("out", "slow"), 100.0), Flow(("out", "fast"), 100.0)
    network.start(slow)
    network.start(fast)
    assert set(network.settle(0.0)) == {slow, fast}
    assert (slow.rate, fast.rate) == (25.0, 75.0)
    network.stop(slow)
    network.settle(1.0)
    assert (fast.rate, fast.remaining) == (100.0, 25.0), "what has flowed is accounted for"


def test_nothing_is_received_twice_after_a_repair() -> None:
    s = replace(A, kills=(Kill(1, 0.4 * A.ideal_s, 0.05 * A.ideal_s),))
    got = simulate(s)
    assert sorted(got.done) == ["t0", "t2", "t3", "t4"]
    assert got.changes == 1
    sent = sum(got.sent.values())
    assert 4 * s.arena_bytes <= sent + 1 < 4.5 * s.arena_bytes, "the dead one's bytes aside, each byte goes once"


def test_a_slow_node_costs_the_others_little_once_noticed() -> None:
    slow = replace(A, arena_bytes=8e9, stragglers=(Straggler(1, 0.25),))
    noticed = replace(slow, stragglers=(Straggler(1, 0.25, detection_s=8 * (A.overhead_s + A.chunk / A.link)),))

    def others(s: Scenario) -> float:
        return max(at for node, at in simulate(s).done.items() if node != "t1") / s.ideal_s

    assert others(slow) > 3.9
    assert others(noticed) < 1.05


def test_a_plan_without_a_way_is_told() -> None:
    with pytest.raises(Unfinished, match="t0, t1, t2, t3, t4 lack bytes"):
        simulate(replace(A, planner=lambda facts: ({},)))
    with pytest.raises(Unfinished, match="lack bytes"):
        simulate(replace(A, planner=lambda facts: ({"t0": "t1", "t1": "t0"},)))


def test_the_chunk_rule() -> None:
    assert chunk_bytes(700e9, 1, 10e-6) == 8 * MIB
    assert chunk_bytes(50e9, 1, 20e-6) == MIB
    assert chunk_bytes(37.5e6, 1, 200e-6) == 64 << 10
    assert request_bytes(700 * 10**9, 1) == 4 * MIB, "what the wire allows"
    assert request_bytes(None, 1) == MIB
    assert request_bytes(37_500_000, 1) == MIB, "bytes are passed on by the chunk"
    with pytest.raises(ValueError, match="two requests in flight"):
        chunk_bytes(1e9, 1, 1e-5, in_flight=1)


def test_how_many_lanes() -> None:
    def lanes(**more: object) -> int:
        facts = {"filling": (), "sources": 1, "percent": None, "strangers": {}} | more
        return how_many(64 * MIB, **facts)  # type: ignore[arg-type]

    assert lanes() == 1
    assert lanes(sources=4) == 1, "no cap: one sender fills the link"
    assert lanes(sources=4, percent=50) == 2
    assert lanes(sources=4, percent=25) == 4
    assert lanes(sources=2, percent=10) == 2
    assert lanes(strangers={"b": 3, "c": 7}) == 7
    assert lanes(strangers={"b": 99}) == 16
    assert lanes(filling=[4, 4, 1], sources=1) == 4, "what fills now is the rule"
    assert how_many(MIB, filling=(), sources=4, percent=25, strangers={}) == 1, "no lane without a chunk"
    assert (lanes_per_root(4, 25), lanes_per_root(4, 10), lanes_per_root(4, 100)) == (1, 1, None)
