"""What `flashboot plan` was asked for, and the scenario that it means. Raises ValueError for what makes no sense."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from flashboot_agent.wire.arena import MAX_LANES
from flashboot_operator.cli.units import parse_rate, parse_size, parse_time
from flashboot_operator.core.fanout.lanes import MAX_SOURCES, chunk_bytes, how_many
from flashboot_operator.core.fanout.scenario import Kill, Scenario, Straggler

MAX_TARGETS = 512
STEPS = 200_000
"""Chunks in all that are simulated one by one; beyond, in larger steps as far as that does not show."""
MAX_STEPS = 4_000_000


class BadInput(ValueError):
    """What was asked for makes no sense; the message says which option, and what to write instead."""


@dataclass(frozen=True)
class Asked:
    """The options, as people write them; docs/reference/cli.md."""

    targets: int
    sources: int
    lanes: int | None
    bytes: str
    bandwidth: str
    overhead: str
    source_egress_percent: int
    domains: int
    crossing: str | None
    arrivals_over: str
    kill: list[str]
    slow: list[str]
    detection: str | None


def scenario_of(a: Asked) -> tuple[Scenario, int]:
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
