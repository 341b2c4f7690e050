"""Who is found slow, and above all who is not."""

from __future__ import annotations

from collections.abc import Callable

from flashboot_operator.core.fanout import pace
from flashboot_operator.core.fanout.pace import Sample, Slow, keep

MIB = 1 << 20
RATE = 100 * MIB


def judge(
    samples: dict[str, tuple[Sample, ...]], before: Slow, allowed: dict[str, float] | None = None
) -> dict[str, frozenset[str]]:
    return dict(pace.judge(samples, before, allowed or {}))


def series(
    rate: float,
    *,
    parent: str = "s",
    starved: Callable[[float], bool] = lambda at: False,
    until: float = 3.0,
    step: float = 0.25,
    chunk: int = MIB,
) -> tuple[Sample, ...]:
    """A node that gets `rate` bytes a second, in whole chunks."""
    times = [i * step for i in range(round(until / step) + 1)]
    return tuple(Sample(t, int(rate * t) // chunk * chunk, (parent,), starved(t)) for t in times)


def chain(*rates: float, **more: object) -> dict[str, tuple[Sample, ...]]:
    return {
        f"n{i}": series(rate, parent=f"n{i - 1}" if i else "s", **more)  # type: ignore[arg-type]
        for i, rate in enumerate(rates)
    }


def test_one_at_a_quarter_is_slow_after_a_second() -> None:
    said = chain(RATE, RATE, RATE / 4, until=1.0)
    assert judge(said, {}) == {"n2": frozenset({"n1"})}
    assert judge(chain(RATE, RATE, RATE / 4, until=0.5), {}) == {}, "half a second proves nothing"


def test_on_a_slow_link_it_takes_eight_chunks() -> None:
    link = 2.4e6  # 20 Mbit/s: a chunk takes 0.44 s
    assert judge(chain(link, link, link / 4, until=2.0), {}) == {}
    assert set(judge(chain(link, link, link / 4, until=9.0), {})) == {"n2"}


def test_a_node_at_seventy_percent_is_left_alone() -> None:
    assert judge(chain(RATE, RATE, 0.7 * RATE), {}) == {}


def test_who_starves_is_never_slow() -> None:
    said = chain(RATE, RATE, RATE) | {"n9": series(RATE / 4, parent="n2", starved=lambda at: round(at * 4) % 3 == 0)}
    assert judge(said, {}) == {}


def test_of_several_in_a_row_only_the_first_is_at_fault() -> None:
    assert set(judge(chain(RATE, RATE, RATE / 4, RATE / 4, RATE / 4), {})) == {"n2"}


def test_a_short_pause_makes_nobody_slow() -> None:
    def with_pause(at: float) -> int:
        return int(RATE * (at - max(0.0, min(at, 2.9) - 2.2)))

    paused = tuple(Sample(i / 4, with_pause(i / 4), ("s",), False) for i in range(13))
    assert judge(chain(RATE, RATE, RATE) | {"n9": paused}, {}) == {}, "one half of the window was well"


def test_reports_that_come_late_together_make_nobody_slow() -> None:
    """The operator was busy for most of a second: all that was said meanwhile is heard at once."""
    late = {
        node: tuple(Sample(max(s.at, 2.4) if s.at > 1.6 else s.at, s.watermark, s.parents, False) for s in samples)
        for node, samples in chain(RATE, RATE, RATE, RATE).items()
    }
    assert judge(late, {}) == {}


def test_one_other_is_enough_only_if_it_is_the_parent() -> None:
    apart = {"a": series(RATE, parent="s"), "b": series(RATE / 4, parent="r")}
    assert judge(apart, {}) == {}
    assert judge(chain(RATE / 4, RATE), {}) == {}, "a late child that catches up proves nothing against its parent"
    assert set(judge(chain(RATE, RATE / 4), {})) == {"n1"}


def test_where_all_wait_for_one_its_link_is_the_measure() -> None:
    starving = {f"n{i}": series(RATE / 4, parent=f"n{i - 1}", starved=lambda at: True) for i in (1, 2)}
    first = {"n0": series(RATE / 4)} | starving
    assert set(judge(first, {}, {"n0": RATE})) == {"n0"}
    assert judge(first, {}) == {}, "nobody says what its link can do"
    assert judge(first, {}, {"n0": RATE / 4}) == {}, "the source may give no more"
    assert judge({"n0": first["n0"]}, {}, {"n0": RATE}) == {}, "nobody waits for it"
    fast = {"n0": series(2e9)} | starving
    assert judge(fast, {}, {"n0": 50e9}) == {}, "a CPU may be the limit of a very fast link"


def test_a_capped_source_is_no_fault_of_its_child() -> None:
    catching_up = {f"m{i}": series(RATE, parent=f"x{i}") for i in range(3)}
    said = {"n0": series(RATE / 4)} | catching_up
    assert set(judge(said, {})) == {"n0"}
    assert judge(said, {}, {"n0": RATE / 4}) == {}


def test_a_new_parent_begins_a_new_window() -> None:
    moved = tuple(Sample(s.at, s.watermark, ("x" if s.at > 2.5 else "s",), False) for s in series(RATE / 4))
    assert judge(chain(RATE, RATE, RATE) | {"n9": moved}, {}) == {}


def test_who_was_slow_stays_so_until_it_keeps_up() -> None:
    before: Slow = {"n2": frozenset({"n1"})}
    assert judge(chain(RATE, RATE, 0.6 * RATE), before) == before
    starving = chain(RATE, RATE) | {"n2": series(RATE, starved=lambda at: True)}
    assert judge(starving, before) == before, "at the tail it starves, which proves nothing"
    assert judge(chain(RATE, RATE, 0.9 * RATE), before) == {}
    assert judge(chain(RATE, RATE), before) == {}, "it has everything, or has gone"


def test_the_second_slow_one_below_the_same_parent_accuses_the_parent() -> None:
    """The first was moved away, and who took its place gets as little: it is the parent that sends slowly."""
    said = chain(RATE, RATE, RATE) | {
        "n8": series(RATE / 4, parent="n2"),
        "n9": series(RATE, starved=lambda at: True),
    }
    assert judge(said, {"n9": frozenset({"n2"})}) == {"n9": frozenset({"n2"}), "n2": frozenset({"n1"})}
    below_source = chain(RATE / 4) | {f"m{i}": series(RATE, parent="r") for i in range(3)}
    before: Slow = {"m0": frozenset({"s"})}
    assert judge(below_source, before) == {}, "a busy source is nobody's fault; who was wrongly moved is well"


def test_old_samples_are_dropped() -> None:
    samples: tuple[Sample, ...] = ()
    for s in series(RATE, until=30.0):
        samples = keep(samples, s)
    assert samples[0].at == 20.0
