"""Running the fuzz targets of csrc/fuzz for a while, from the committed corpus and what earlier runs found.

A target that fails leaves its input in build/checks/asan/found; `TARGET FILE` shows the failure again. Such an input
belongs into csrc/fuzz/corpus/TARGET with the fix, where every later run begins with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from native_checks.step import step
from native_checks.variants import jobs

_ONE_INPUT = 10
"""Seconds for one input: more is a hang."""
_MEMORY_MIB = 2048


def targets(build: Path) -> list[Path]:
    """The fuzz programs in a build folder."""
    return sorted(path for path in (build / "fuzz").glob("*_fuzz") if path.is_file())


def run(build: Path, corpus: Path, seconds: float, env: Mapping[str, str]) -> None:
    """Fuzz all targets for `seconds` of wall clock in all. Raises CheckFailed."""
    programs = targets(build)
    at_once = min(jobs(), len(programs))
    each = max(1, round(seconds * at_once / len(programs)))
    found = build / "found"
    found.mkdir(exist_ok=True)

    def one(program: Path) -> None:
        grown = build / "corpus" / program.name  # what this machine found, kept out of the checkout
        grown.mkdir(parents=True, exist_ok=True)
        limits = [f"-max_total_time={each}", f"-timeout={_ONE_INPUT}", f"-rss_limit_mb={_MEMORY_MIB}"]
        argv: list[str | Path] = [
            program,
            grown,
            corpus / program.name,
            *limits,
            f"-artifact_prefix={found}/{program.name}-",
        ]
        step(argv, build / f"{program.name}.log", env=env, seconds=each + 60 + _ONE_INPUT)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, programs))
