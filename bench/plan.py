"""`python -m bench.plan [--quick] [--json FILE]`: the figures behind the fan-out planner, made anew by its simulator.

Every figure is the time of the last target over S/B, the time to send one arena over one link, unless its row says
otherwise. The `design` in a note is what an independent simulation gave before there was a planner; the ratio is ours
to that. Rows of plans that FlashBoot uses have a goal, rows of others are for comparison (bench/baselines.py).

A: 8 GB at 700 GB/s, 10 µs (NVLink). B: 64 MiB at 300 Mbit/s, 200 µs (the rack). C: 40 GB at 50 GB/s, 20 µs (RDMA).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from bench.baselines import Planner, binomial, chain_ratio, hypercube_ratio, star, tree, two_trees
from bench.kit import report
from bench.kit.outcome import Options, Outcome
from bench.kit.rows import Row, at_most
from bench.kit.say import say
from flashboot_operator.core.fanout.lanes import chunk_bytes
from flashboot_operator.core.fanout.scenario import Kill, Scenario, Straggler
from flashboot_operator.core.fanout.scenario import Outcome as Simulated
from flashboot_operator.core.fanout.simulate import simulate

MIB = 1 << 20
COUNTS = (1, 3, 7, 17, 35, 71)
SLACK = 1.03
"""A figure of ours may be this much above the design's."""
CHUNKS = [MIB << i for i in range(9)]
"""What "best chunk" chooses from: 1 to 256 MiB."""


def a(targets: int, lanes: int = 1) -> Scenario:
    return Scenario(targets, 8e9, 700e9, 10e-6, chunk_bytes(700e9, lanes, 10e-6), lanes=lanes)


def b(targets: int) -> Scenario:
    return Scenario(targets, 64 * MIB, 300e6 / 8, 200e-6, chunk_bytes(300e6 / 8, 1, 200e-6))


def c(targets: int) -> Scenario:
    return Scenario(targets, 40e9, 50e9, 20e-6, chunk_bytes(50e9, 1, 20e-6))


def bench(options: Options) -> Outcome:
    outcome = Outcome()
    for part in (at_once, arriving, other_links, many_sources, stragglers, kills, racks):
        say(part.__name__)
        outcome.rows += list(part(options.quick))
    return outcome


def _row(what: str, figure: float, design: float | None, *, ours: bool = True, upper: float | None = None) -> Row:
    """`upper`: the upper end of the design's range, where it gives one."""
    bound = design if upper is None else upper
    said = "" if design is None else f"design {design:g}" + (f" to {upper:g}" if upper is not None else "")
    if design is not None and upper is None:
        said += f", ratio {figure / design:.3f}"
    return Row(what, figure, "S/B", at_most(round(bound * SLACK, 4)) if ours and bound is not None else None, said)


def _ratio(scenario: Scenario) -> float:
    return simulate(scenario).last_s / scenario.ideal_s


def at_once(quick: bool) -> Iterator[Row]:
    """All ready at t = 0, scenario A."""

    def rows(
        what: str, design: Iterable[float], figure: Callable[[int], float], *, ours: bool = False
    ) -> Iterator[Row]:
        for n, said in zip(COUNTS, design, strict=True):
            if not quick or n <= 17:
                yield _row(f"A, n={n}: {what}", figure(n), said, ours=ours)

    def static(n: int, lanes: int, planner: Callable[[list[str]], Planner]) -> float:
        s = a(n, lanes)
        return _ratio(replace(s, planner=planner(s.target_names)))

    def best(n: int, formula: Callable[[int, float, float, float], float]) -> float:
        s = a(n)
        return min(formula(n, s.ideal_s, s.overhead_s, chunk / s.link) for chunk in CHUNKS)

    coarse = 64 * MIB
    yield from rows("star", (1, 3, 7, 17, 35, 71), lambda n: _ratio(replace(a(n), planner=star, chunk=coarse)))
    yield from rows(
        "whole-model binomial",
        (1, 2, 3, 5, 6.01, 7.01),
        lambda n: _ratio(replace(a(n), planner=binomial, chunk=8e9)),
    )
    yield from rows(
        "tree of degree 2, w=2", (1, 2, 2, 2.01, 2.01, 2.01), lambda n: static(n, 1, lambda order: tree(order, 2))
    )
    yield from rows("chain, w=1, best chunk", (1.03, 1.10, 1.16, 1.25, 1.42, 1.63), lambda n: best(n, chain_ratio))
    yield from rows(
        "chain by arrival, w=2 (ours)", (1, 1.01, 1.01, 1.03, 1.07, 1.14), lambda n: _ratio(a(n)), ours=True
    )
    yield from rows(
        "two interior-disjoint trees, w=2", (1, 1, 1.01, 1.01, 1.01, 1.01), lambda n: static(n, 2, two_trees)
    )
    yield from rows(
        "hypercube, w=1, best chunk", (1.03, 1.06, 1.10, 1.14, 1.15, 1.16), lambda n: best(n, hypercube_ratio)
    )
    n = 17 if quick else 71
    one = _ratio(replace(a(n), in_flight=1, chunk=32 * MIB))
    yield _row(f"A, n={n}: chain by arrival, one request in flight, 32 MiB", one, None if quick else 1.56, ours=False)


def arriving(quick: bool) -> Iterator[Row]:
    """Readiness to completion, mean and worst, with arrivals spread at random."""
    n = 17 if quick else 71
    spreads = ((0, "no jitter"), (2, "over 2 S/B"), (20, "over 20 S/B"))
    design: dict[str, list[tuple[float, float]]] = {
        "star": [(71, 71), (69, 70), (51, 57)],
        "static chain": [(1.10, 1.21), (1.91, 2.99), (9.6, 20)],
        "chain by arrival (ours)": [(1.10, 1.21), (1.0, 1.0), (1.0, 1.0)],
        "two trees by arrival": [(1.03, 1.03), (1.49, 2.03), (5.8, 11)],
    }
    for name, figures in design.items():
        for (spread, words), (mean, worst) in zip(spreads, figures, strict=True):
            s = _ready(a(n, 2 if name.startswith("two") else 1), spread)
            order = sorted(s.target_names, key=dict(zip(s.target_names, s.ready, strict=True)).__getitem__)
            if name == "star":
                s = replace(s, planner=star, chunk=64 * MIB)
            elif name == "static chain":
                s = replace(s, planner=tree(s.target_names, 1))
            elif name.startswith("two"):
                s = replace(s, planner=two_trees(order))
            got, ours = simulate(s), "ours" in name
            for what, took, said in (("mean", got.mean_took, mean), ("worst", got.worst_took, worst)):
                yield _row(f"A, n={n}, {words}: {name}, {what}", took / s.ideal_s, None if quick else said, ours=ours)


def _ready(s: Scenario, spread: float) -> Scenario:
    dice = random.Random(1)
    return replace(s, ready=tuple(dice.uniform(0, spread) * s.ideal_s for _ in range(s.targets)))


def other_links(quick: bool) -> Iterator[Row]:
    yield _row("B, n=17: chain by arrival (ours)", _ratio(b(17)), 1.018)
    if not quick:
        yield _row("B, n=71: chain by arrival (ours)", _ratio(b(71)), 1.076)
        yield _row("C, n=71: chain by arrival (ours)", _ratio(c(71)), 1.004)


def many_sources(quick: bool) -> Iterator[Row]:
    """Every source may give a quarter of its link."""
    for n in (7,) if quick else (17,):
        four = replace(a(n, lanes=4), sources=4, source_cap=0.25 * 700e9)
        got = simulate(four)
        yield _row(f"A, n={n}: four lanes from four sources at 25 % (ours)", got.last_s / four.ideal_s, 1.05)
        most = max(got.sent[name] for name in four.source_names) / four.arena_bytes
        yield replace(_row(f"A, n={n}: most that one of them sends", most, 0.25), unit="S")
        one = replace(a(n), source_cap=0.25 * 700e9)
        yield _row(f"A, n={n}: one chain from one source at 25 %", _ratio(one), 4.0, ours=False)


def _others(got: Simulated, s: Scenario) -> float:
    """The last of those that were not made slow."""
    slow = {s.target_names[x.target] for x in s.stragglers}
    return max(took for name, took in got.took.items() if name not in slow) / s.ideal_s


def stragglers(quick: bool) -> Iterator[Row]:
    """One node at 25 % of its bandwidth; the figure is that of the last of the others."""
    for n in (7, 17) if quick else (7, 17, 35):
        s, place = a(n), n // 3
        noticed = 8 * (s.overhead_s + s.chunk / s.link)
        for what, detection, said, upper in (
            ("left alone", None, 3.1, 3.7),
            ("demoted after 8 chunk times (ours)", noticed, 1.0, 1.04),
        ):
            slow = replace(s, stragglers=(Straggler(place, 0.25, detection_s=detection),))
            row = _row(f"A, n={n}: one node at 25 %, {what}", _others(simulate(slow), slow), said, upper=upper)
            yield row if detection is not None else replace(row, goal=None)


def kills(quick: bool) -> Iterator[Row]:
    """Three random kills, noticed after 0.05 S/B; the worst survivor of some seeds."""
    for n in (8, 17) if quick else (8, 17, 35, 71):
        for what, slow, lower, upper in (("three kills", False, 1.02, 1.23), ("and a straggler", True, 1.05, 1.27)):
            worst = 0.0
            for seed in range(2 if n > 17 else 4):
                s, dice = a(n), random.Random(100 * n + seed)
                who = dice.sample(range(n), 4)
                s = replace(
                    s, kills=tuple(Kill(v, dice.uniform(0.1, 0.9) * s.ideal_s, 0.05 * s.ideal_s) for v in who[:3])
                )
                if slow:
                    noticed = 8 * (s.overhead_s + s.chunk / s.link)
                    s = replace(s, stragglers=(Straggler(who[3], 0.25, detection_s=noticed),))
                worst = max(worst, _others(simulate(s), s))
            yield _row(f"A, n={n}: {what}, noticed after 0.05 S/B, worst survivor (ours)", worst, lower, upper=upper)


def racks(quick: bool) -> Iterator[Row]:
    """Racks of 8 (and 18) nodes; between them each node has a tenth of its bandwidth."""
    for per, lanes, chunk in ((8, 1, 8), (8, 8, 8)) if quick else ((8, 1, 8), (8, 8, 2), (18, 16, 4)):
        domains = tuple("ab"[i // per] for i in range(2 * per))
        s = replace(a(2 * per - 1, lanes), domains=domains, crossing=70e9, chunk=float(chunk * MIB))
        got = simulate(s)
        ours = lanes > 1
        words = f"A, 2 racks of {per}, a tenth between them, {lanes} lane{'s' if ours else ''}"
        figure, entered = got.last_s / s.ideal_s, got.crossed / s.arena_bytes
        if ours:
            yield _row(f"{words} (ours)", figure, 1.06, ours=not quick, upper=1.3)
        else:
            yield _row(words, figure, 10.1, ours=False)
        yield Row(f"{words}: how often each byte enters the other rack", round(entered, 6), "times", at_most(1.0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.plan", description="Figures of the fan-out planner, by simulation.")
    parser.add_argument("--quick", action="store_true", help="smaller clusters, about a minute")
    parser.add_argument("--json", type=Path, help="write the rows there")
    arguments = parser.parse_args()
    outcome = bench(Options(arguments.quick, Path("build/bench/logs/plan")))
    print(report.text("plan", outcome.rows))
    if arguments.json is not None:
        report.write_json(arguments.json, "plan", {}, outcome.rows, {})
    return 0


if __name__ == "__main__":
    sys.exit(main())
