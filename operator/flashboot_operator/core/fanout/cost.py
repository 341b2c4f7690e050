"""How long a fan-out should take: the estimate that is shown beside a plan.

    T = max(S/B, S/Σ source caps, S/(g·Bx)) + H·(o + k·c/B) + o

S bytes of the arena, B link, o overhead of one request, k lanes, c bytes of one request, H depth of the deepest chain
below its first node, g gateways that pull at once over Bx each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    seconds: float
    ideal_seconds: float
    """S/B: one arena over one link."""

    @property
    def ratio(self) -> float:
        return self.seconds / self.ideal_seconds


def estimate(
    arena_bytes: float,
    link: float,
    *,
    overhead_s: float,
    lanes: int,
    chunk: float,
    depth: int,
    source_caps: float | None = None,
    gateways: int = 0,
    crossing: float | None = None,
) -> Estimate:
    """`depth`: edges between the first and the last target of the deepest lane. `source_caps`: sum over the sources,
    bytes a second, None for no cap. `gateways`, `crossing`: how many pull at once from another domain, bytes a second
    of each."""
    ideal = arena_bytes / link
    bound = ideal
    if source_caps is not None:
        bound = max(bound, arena_bytes / source_caps)
    if gateways and crossing is not None:
        bound = max(bound, arena_bytes / (gateways * crossing))
    return Estimate(bound + depth * (overhead_s + lanes * chunk / link) + overhead_s, ideal)
