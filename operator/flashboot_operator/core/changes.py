"""How one decision differs from the one before it, counted for metrics. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from flashboot_operator.core.fanout.model import Plan
from flashboot_operator.core.plan import ArenaPlan, seeds_of

EdgeChange = Literal["joined", "moved", "left"]
Role = Literal["source", "seed"]
SEED_REASON: Final = "NobodyHasIt"


def edge_changes(before: Plan, after: Plan) -> Counter[EdgeChange]:
    """joined: a node got a parent in a lane; moved: another one, a repair; left: it needs none any more, or is gone."""
    found: Counter[EdgeChange] = Counter()
    for lane in range(max(len(before), len(after))):
        was: Mapping[str, str] = before[lane] if lane < len(before) else {}
        now: Mapping[str, str] = after[lane] if lane < len(after) else {}
        found["joined"] += len(now.keys() - was.keys())
        found["left"] += len(was.keys() - now.keys())
        found["moved"] += sum(1 for node in now.keys() & was.keys() if now[node] != was[node])
    return +found


def elections(before: Sequence[ArenaPlan], after: Sequence[ArenaPlan]) -> Counter[tuple[Role, str]]:
    """(role, reason) of those who were elected anew."""
    sources = {(plan.arena, domain): s.node for plan in before for domain, s in plan.sources.items()}
    found: Counter[tuple[Role, str]] = Counter()
    for plan in after:
        for domain, source in plan.sources.items():
            if source.node != sources.get((plan.arena, domain)):
                found["source", source.reason] += 1
    known = seeds_of(before)
    for arena, uids in seeds_of(after).items():
        if anew := uids - known.get(arena, frozenset()):
            found["seed", SEED_REASON] += len(anew)
    return found
