"""`flashboot plan`: who would pull from whom, and how long it would take; with the operator's planner, on no
cluster."""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from typing import Any, TextIO

from flashboot_agent.wire.control import MAX_LANES
from flashboot_operator.cli.drawing import draw
from flashboot_operator.cli.units import parse_rate, parse_size, parse_time, show_rate, show_size, show_time
from flashboot_operator.core.fanout.cost import Estimate, estimate
from flashboot_operator.core.fanout.lanes import MAX_SOURCES, chunk_bytes, how_many
from flashboot_operator.core.fanout.scenario import Kill, Outcome, Scenario, Straggler
from flashboot_operator.core.fanout.simulate import simulate

MAX_TARGETS = 512
STEPS = 200_000
"""Chunks in all that are simulated one by one; beyond, in larger steps as far as that does not show."""
MAX_STEPS = 4_000_000


class BadInput(ValueError):
    """What was asked for makes no sense; the message says which option, and what to write instead."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = commands.add_parser(
        "plan", help="draw the trees of a scale-up and say how long it takes", description=(__doc__ or "").strip()
    )
    p.add_argument("--targets", type=int, required=True, metavar="N", help="nodes that shall get the arena")
    p.add_argument("--sources", type=int, default=1, metavar="M", help="nodes that hold it (default 1)")
    p.add_argument("--lanes", type=int, metavar="K", help="byte lanes (default: as the operator would choose)")
    p.add_argument("--bytes", default="8GB", metavar="SIZE", help="size of the arena (default 8GB)")
    p.add_argument("--bandwidth", default="700GB/s", metavar="RATE", help="of each node, each way (default 700GB/s)")
    p.add_argument("--overhead", default="10us", metavar="TIME", help="between two requests (default 10us)")
    p.add_argument("--source-egress-percent", type=int, default=100, metavar="P", help="share a source may send")
    p.add_argument("--domains", type=int, default=1, metavar="D", help="racks, equally large; sources in the first")
    p.add_argument("--crossing", metavar="RATE", help="of each node, each way, between racks (default: a tenth)")
    p.add_argument("--arrivals-over", default="0s", metavar="TIME", help="targets get ready at random within this time")
    p.add_argument("--kill", action="append", default=[], metavar="NODE@TIME", help="a target dies, e.g. t3@5ms")
    p.add_argument(
        "--slow", action="append", default=[], metavar="NODE=PERCENT", help="a target keeps so much bandwidth"
    )
    p.add_argument("--detection", metavar="TIME", help="until a fault is noticed (default: 8 chunk times)")
    p.add_argument("--json", action="store_true", help="for programs")
    p.set_defaults(run=run)


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Returns 0.

    Raises ValueError for input that makes no sense, Unfinished when the faults leave somebody without a way.
    """
    scenario, chunk = _scenario(arguments)
    outcome = simulate(scenario)
    expected = _estimate(scenario, chunk, outcome)
    if arguments.json:
        json.dump(_document(scenario, chunk, outcome, expected), out, indent=1)
        out.write("\n")
    else:
        out.write("\n".join(_text(scenario, chunk, outcome, expected)) + "\n")
    return 0


def _scenario(a: argparse.Namespace) -> tuple[Scenario, int]:
    """What is simulated, and the bytes of one request. They differ where steps of one request would be too many."""
    _within("--targets", a.targets, 1, MAX_TARGETS)
    _within("--sources", a.sources, 1, MAX_SOURCES)
    _within("--source-egress-percent", a.source_egress_percent, 1, 100)
    _within("--domains", a.domains, 1, a.targets + 1)
    nbytes, link, overhead = parse_size(a.bytes), parse_rate(a.bandwidth), parse_time(a.overhead)
    percent = a.source_egress_percent
    nodes = a.sources + a.targets
    domains = tuple(f"rack{i * a.domains // nodes}" for i in range(nodes))
    homes = set(domains[: a.sources])
    strangers = {d: domains[a.sources :].count(d) for d in set(domains) - homes}
    if a.lanes is not None:
        _within("--lanes", a.lanes, 1, MAX_LANES)
    lanes = a.lanes or how_many(nbytes, filling=(), sources=a.sources, percent=percent, strangers=strangers)
    chunk = chunk_bytes(link, lanes, overhead)
    made = Scenario(
        a.targets,
        nbytes,
        link,
        overhead,
        _step(chunk, nbytes, lanes, a.targets),
        lanes=lanes,
        sources=a.sources,
        source_cap=None if percent == 100 else link * percent / 100,
        domains=domains,
        crossing=None if a.domains == 1 else parse_rate(a.crossing) if a.crossing else link / 10,
    )
    dice, spread = random.Random(0), parse_time(a.arrivals_over)
    made = replace(made, ready=tuple(sorted(dice.uniform(0, spread) for _ in range(a.targets))) if spread else ())
    noticed = parse_time(a.detection) if a.detection else 8 * (overhead + lanes * chunk / link)
    kills = tuple(Kill(_target(made, "--kill", n), parse_time(t), noticed) for n, t in _pairs("--kill", a.kill, "@"))
    slow = tuple(
        Straggler(_target(made, "--slow", n), _percent(p) / 100, 0.0, noticed) for n, p in _pairs("--slow", a.slow, "=")
    )
    if len({k.target for k in kills}) == a.targets:
        raise BadInput("--kill: no target is left")
    return replace(made, kills=kills, stragglers=slow), chunk


def _within(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadInput(f"{option} {value}: must be {low} to {high}")


def _step(chunk: int, nbytes: int, lanes: int, targets: int) -> float:
    step = float(chunk)
    while nbytes / step * targets > STEPS and 2 * step * lanes * targets <= nbytes / 100:
        step *= 2
    if nbytes / step * targets > MAX_STEPS:
        raise BadInput(
            f"{nbytes / step * targets:.0f} requests are too many to simulate; take fewer --targets or fewer --lanes"
        )
    return step


def _pairs(option: str, given: list[str], mark: str) -> list[tuple[str, str]]:
    for text in given:
        if mark not in text:
            raise BadInput(f"{option} {text}: write it like {'t3@5ms' if mark == '@' else 't3=25'}")
    return [(text.partition(mark)[0], text.partition(mark)[2]) for text in given]


def _target(scenario: Scenario, option: str, name: str) -> int:
    names = scenario.target_names
    if name not in names:
        raise BadInput(f"{option} {name}: targets are named {names[0]} to {names[-1]}")
    return names.index(name)


def _percent(text: str) -> float:
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < 100:
        raise BadInput(f"--slow …={text}: must be a percentage above 0 and below 100, such as 25")
    return value


def _estimate(s: Scenario, chunk: int, outcome: Outcome) -> Estimate:
    foreign = sum(1 for d in s.domains[s.sources :] if d not in s.domains[: s.sources])
    racks = len(set(s.domains) - set(s.domains[: s.sources]))
    return estimate(
        s.arena_bytes,
        s.link,
        overhead_s=s.overhead_s,
        lanes=s.lanes,
        chunk=chunk,
        depth=max(0, max(_depth(edges) for edges in outcome.final) - 1),
        source_caps=None if s.source_cap is None else s.source_cap * s.sources,
        gateways=min(s.lanes, foreign // racks) if racks else 0,
        crossing=s.crossing,
    )


def _depth(edges: dict[str, str]) -> int:
    def up(node: str) -> int:
        depth = 0
        while node in edges:
            node, depth = edges[node], depth + 1
        return depth

    return max((up(node) for node in edges), default=0)


def _text(s: Scenario, chunk: int, outcome: Outcome, expected: Estimate) -> list[str]:
    steps = "" if s.chunk == chunk else f", simulated in steps of {show_size(s.chunk)}"
    many = f"{s.lanes} lane{'s' if s.lanes > 1 else ''}, requests of {show_size(chunk)}{steps}"
    last = max(outcome.done, key=outcome.done.__getitem__)
    lines = [
        f"{show_size(s.arena_bytes)} over {show_rate(s.link)} to {s.targets} targets from {s.sources} source"
        f"{'s' if s.sources > 1 else ''}: {many}",
        f"S/B        {show_time(expected.ideal_seconds)}, one arena over one link",
        f"estimate   {show_time(expected.seconds)}, {expected.ratio:.3f} S/B, for trees of this depth",
        f"simulated  {show_time(outcome.last_s)} until the last has everything ({last}); "
        f"{show_time(outcome.worst_took)}, {outcome.worst_took / s.ideal_s:.3f} S/B, from its own readiness at worst",
        f"sent       {', '.join(f'{n} {outcome.sent[n] / s.arena_bytes:.2f} S' for n in s.source_names)}"
        + (f"; between racks {outcome.crossed / s.arena_bytes:.2f} S" if s.crossing is not None else ""),
    ]
    notes = {node: f"({show_time(at)})" for node, at in outcome.done.items()}
    for lane, edges in enumerate(outcome.final):
        if lane and edges == outcome.final[0]:
            lines.append(f"lane {lane}: as lane 0")
            continue
        lines += ["", f"lane {lane}", *draw(edges, [n for n in s.source_names if n in edges.values()], notes)]
    return lines


def _document(s: Scenario, chunk: int, outcome: Outcome, expected: Estimate) -> dict[str, Any]:
    return {
        "arenaBytes": s.arena_bytes,
        "bandwidthBytesPerSecond": s.link,
        "requestBytes": chunk,
        "idealSeconds": expected.ideal_seconds,
        "estimateSeconds": expected.seconds,
        "simulatedSeconds": outcome.last_s,
        "worstFromReadinessSeconds": outcome.worst_took,
        "doneSeconds": outcome.done,
        "sentBytes": outcome.sent,
        "crossedBytes": outcome.crossed,
        "changedEdges": outcome.changes,
        "lanes": [{"parents": edges} for edges in outcome.final],
    }
