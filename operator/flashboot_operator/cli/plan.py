"""`flashboot plan`: who would pull from whom, and how long it would take; with the operator's planner, on no
cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from flashboot_operator.cli.asked import Asked, scenario_of
from flashboot_operator.cli.drawing import draw
from flashboot_operator.cli.output import Output, OutputOption, emit
from flashboot_operator.cli.units import show_rate, show_size, show_time
from flashboot_operator.core.fanout.cost import Estimate, estimate
from flashboot_operator.core.fanout.scenario import Outcome, Scenario
from flashboot_operator.core.fanout.simulate import simulate


def _option(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help)


def command(
    *,
    targets: Annotated[int, _option("--targets", "N", "nodes that shall get the arena")],
    sources: Annotated[int, _option("--sources", "M", "nodes that hold it")] = 1,
    lanes: Annotated[int | None, _option("--lanes", "K", "byte lanes (default: as the operator would choose)")] = None,
    size: Annotated[str, _option("--bytes", "SIZE", "of the arena")] = "8GB",
    bandwidth: Annotated[str, _option("--bandwidth", "RATE", "of each node, each way")] = "700GB/s",
    overhead: Annotated[str, _option("--overhead", "TIME", "between two requests")] = "10us",
    percent: Annotated[int, _option("--source-egress-percent", "P", "share a source may send")] = 100,
    domains: Annotated[int, _option("--domains", "D", "racks, equally large; sources in the first")] = 1,
    crossing: Annotated[
        str | None, _option("--crossing", "RATE", "of each node, each way, between racks (default: a tenth)")
    ] = None,
    arrivals_over: Annotated[
        str, _option("--arrivals-over", "TIME", "targets get ready at random within this time")
    ] = "0s",
    kill: Annotated[list[str] | None, _option("--kill", "NODE@TIME", "a target dies, e.g. t3@5ms")] = None,
    slow: Annotated[list[str] | None, _option("--slow", "NODE=PERCENT", "a target keeps so much bandwidth")] = None,
    detection: Annotated[
        str | None, _option("--detection", "TIME", "until a fault is noticed (default: 8 chunk times)")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> int:
    """Draw the trees of a scale-up and say how long it takes, with the operator's planner, on no cluster."""
    asked = Asked(
        targets=targets,
        sources=sources,
        lanes=lanes,
        bytes=size,
        bandwidth=bandwidth,
        overhead=overhead,
        source_egress_percent=percent,
        domains=domains,
        crossing=crossing,
        arrivals_over=arrivals_over,
        kill=kill or [],
        slow=slow or [],
        detection=detection,
    )
    scenario, chunk = scenario_of(asked)
    outcome = simulate(scenario)
    expected = _estimate(scenario, chunk, outcome)
    emit(output, _document(scenario, chunk, outcome, expected), _text(scenario, chunk, outcome, expected))
    return 0


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
