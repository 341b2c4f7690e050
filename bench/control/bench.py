"""`control`: from a pod that is bound until its agent has acknowledged what to do, stage by stage.

bound → watch (API server, until the operator sees it) → queue → plan → put (the agent has acknowledged)
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.control.light import cluster, stages
from bench.control.real import real
from bench.kit.outcome import Options, Outcome
from bench.kit.rows import Goal, Row, at_most
from bench.kit.say import say
from bench.kit.worker import cpu_seconds

SIZES = {18: 12, 72: 4}
"""Light nodes → scale-ups that are measured, after one that is dropped."""
GOALS: dict[tuple[int, str, int], Goal] = {(18, "whole", 99): at_most(250)}
WORDS = {
    "whole": "bound until the agent has acknowledged",
    "watch": "bound until the operator sees it",
    "queue": "seen until looked at",
    "plan": "looked at until decided",
    "put": "decided until acknowledged",
}
CPU = "operatorCpu"
Samples = Mapping[str, Sequence[float]]
"""Stage → milliseconds."""


def control(options: Options) -> Outcome:
    outcome = Outcome()
    for nodes, rounds in SIZES.items():

        def measure(nodes: int = nodes, rounds: int = 1 if options.quick else rounds) -> None:
            folder = options.logs / f"light-{nodes}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            samples = asyncio.run(_light(nodes, rounds, folder))
            outcome.rows += rows(f"{nodes} light nodes", nodes, samples)
            outcome.details[f"light-{nodes}"] = samples

        outcome.part(f"{nodes} light nodes", measure)
    outcome.rows += [row for what, samples in real().items() for row in rows(what, 0, samples)]
    return outcome


async def _light(nodes: int, rounds: int, folder: Path) -> Samples:
    found: dict[str, list[float]] = {stage: [] for stage in (*WORDS, CPU)}
    async with cluster(nodes, folder) as there:
        for number in range(rounds + 1):
            before = cpu_seconds(there.rig.operator.pid)
            bound = await there.scale_up()
            if number == 0:
                continue
            found[CPU].append(1000 * (cpu_seconds(there.rig.operator.pid) - before) / len(bound))
            said = stages(there.rig.operator.log)
            for uid, at in bound.items():
                told = said[uid]
                watch = 1000 * (told["seenAt"] - at)
                for stage, value in {
                    "watch": watch,
                    **{s: told[f"{s}Ms"] for s in ("queue", "plan", "put")},
                    "whole": watch + told["wholeMs"],
                }.items():
                    found[stage].append(value)
            say(f"  scale-up {number} of {rounds}: worst {max(found['whole'][-len(bound) :]):.0f} ms")
    return found


def rows(what: str, nodes: int, samples: Samples) -> list[Row]:
    made = []
    for stage, words in WORDS.items():
        values = sorted(samples.get(stage, ()))
        for percent in (50, 99) if values else ():
            figure = percentile(values, percent)
            goal, spread = GOALS.get((nodes, stage, percent)), (values[0], values[-1])
            made.append(Row(f"{what}, p{percent}: {words}", figure, "ms", goal, f"{len(values)} pods", spread))
    if cpu := sorted(samples.get(CPU, ())):
        note = "from the binding to the clone's seal and the pod's end; steadier than times"
        spread = cpu[0], cpu[-1]
        made.append(Row(f"{what}: CPU of the operator per pod", percentile(cpu, 50), "ms", None, note, spread))
    return made


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that so many percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
