"""How long the engines of one scale-up took to start, phase by phase; of several engines the slowest counts in each."""

from __future__ import annotations

from collections.abc import Iterable

from flashboot_agent.wire.observed_pod import StartupTimes
from flashboot_operator.api.status import EngineStart, LastClone


def slowest(told: Iterable[StartupTimes | None]) -> EngineStart | None:
    """None until every engine has told, so that the status is written once."""
    all_told = list(told)
    times = [each.model_dump() for each in all_told if each is not None]
    if not times or len(times) < len(all_told):
        return None
    return EngineStart.model_validate(
        {name: max((t[name] for t in times if t[name] is not None), default=None) for name in StartupTimes.model_fields}
    )


def completed(kept: LastClone, told: Iterable[StartupTimes | None]) -> LastClone:
    """The record of the same scale-up, with what its engines told later; a record that has it stays as it is."""
    engine = slowest(told) if kept.engine is None else None
    return kept if engine is None else kept.model_copy(update={"engine": engine})
