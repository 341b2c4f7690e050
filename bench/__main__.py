"""`python -m bench load|attach|clone|fanout|repair|isolation|plan|control|delta|all [--quick] [--docs]`.

Each benchmark runs alone; one that fails is told, and with `all` the next one runs. Exit code 1: something could not be
measured at all (a goal that was missed is a result, not a failure).
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import traceback

from bench.kit import machine, report
from bench.kit.outcome import Options, Outcome
from bench.kit.say import say

BENCHMARKS = {
    "load": "bench.load.bench:load",
    "attach": "bench.attach.bench:attach",
    "clone": "bench.clone.bench:clone",
    "fanout": "bench.fanout.bench:fanout",
    "repair": "bench.fanout.bench:repair",
    "isolation": "bench.isolation.bench:isolation",
    "plan": "bench.plan:bench",
    "control": "bench.control.bench:control",
    "delta": "bench.delta.bench:delta",
}
BUILD = machine.REPO / "build" / "bench"
DOCS = machine.REPO / "docs" / "benchmarks"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measure FlashBoot against limits and peers.")
    parser.add_argument("names", nargs="+", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--quick", action="store_true", help="a short run that shows that everything works")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks/NAME.md, too")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # everything is put back as after Ctrl-C
    names = list(BENCHMARKS) if "all" in arguments.names else arguments.names
    broken = [name for name in names if not _run(name, quick=arguments.quick, docs=arguments.docs)]
    if broken:
        say(f"not measured: {', '.join(broken)}")
    return 1 if broken else 0


def _run(name: str, *, quick: bool, docs: bool) -> bool:
    facts = {**machine.describe(), "run": "quick: no result" if quick else "full"}
    say(f"{name}: {', '.join(f'{key}: {value}' for key, value in facts.items())}")
    module, _, function = BENCHMARKS[name].partition(":")
    try:
        outcome: Outcome = getattr(importlib.import_module(module), function)(Options(quick, BUILD / "logs" / name))
    except Exception:  # noqa: BLE001 - one benchmark that breaks must not take the others along; it is told and counted
        traceback.print_exc()
        return False
    print(report.text(name, outcome.rows), flush=True)
    report.write_json(BUILD / f"{name}.json", name, facts, outcome.rows, outcome.details)
    if docs:
        DOCS.mkdir(parents=True, exist_ok=True)
        (DOCS / f"{name}.md").write_text(report.markdown(name, facts, outcome.rows))
    return bool(outcome.rows)


if __name__ == "__main__":
    sys.exit(main())
