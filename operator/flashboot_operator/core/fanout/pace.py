"""Who is slow: from what each node said of its watermarks over the last seconds. Pure.

A slow node costs everybody below it, and a false accusation costs its place, so the rule asks for much:

* The pace of a node counts only while it had the same parents and was never *starved*: a parent that has no byte which
  we lack sets our pace, and says nothing against us.
* It is slow when, in both halves of the window, it got less than half of the median of the others that count, and
  there are two of those, or one that is its parent or child. The window is a second, longer where that is fewer than
  eight chunks.
* Of several slow ones in a row only the first is at fault: those below get what it gets.
* When a second node is slow below the same parent, the parent is at fault, not the node.
* Who was found slow stays so until it keeps up with the median again, while it counts.

A node that stands still says nothing new, and is left to its children's complaints: they notice it sooner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES

KEEP_S = 10.0
"""How far back samples are of use."""
WINDOWS_S = (1.0, 2.0, 4.0, 8.0)
CHUNKS = 8
"""The median node has to get so many chunks within a window: verified bytes come in chunks, and fewer would be too
coarse."""
SLOW = 0.5
WELL = 0.8
"""Shares of the median below which a node becomes slow, and above which it is well again."""


@dataclass(frozen=True)
class Sample:
    """What a node said of an arena that fills."""

    at: float
    """Monotonic seconds; when it was heard."""
    watermark: int
    """Over all lanes."""
    parents: tuple[str | None, ...]
    starved: bool
    """In any lane."""


def keep(samples: Sequence[Sample], fresh: Sample) -> tuple[Sample, ...]:
    """With the fresh one, and without those that are too old to matter."""
    return (*(s for s in samples if fresh.at - s.at <= KEEP_S), fresh)


@dataclass(frozen=True)
class _Pace:
    at: float
    first: float
    second: float
    """Bytes a second in the two halves of the window."""
    parents: frozenset[str]

    @property
    def whole(self) -> float:
        return (self.first + self.second) / 2


Slow = Mapping[str, frozenset[str]]
"""Slow node → the parents that it had when it was found slow."""


def judge(samples: Mapping[str, Sequence[Sample]], before: Slow) -> Slow:
    """Who is slow now. `samples`: of each node whose arena fills, in order of time. `before`: the last verdict."""
    kept = {node: parents for node, parents in before.items() if node in samples}
    for window in WINDOWS_S:
        paces = _paces(samples, window)
        well = {node: p for node, p in paces.items() if node not in kept}
        if not well or median(p.whole for p in well.values()) * window < CHUNKS * DIGEST_CHUNK_BYTES:
            continue
        return _verdict(paces, kept)
    return kept


def _paces(samples: Mapping[str, Sequence[Sample]], window: float) -> dict[str, _Pace]:
    paces = {node: p for node, s in samples.items() if (p := _pace(s, window)) is not None}
    latest = max((p.at for p in paces.values()), default=0.0)
    return {node: p for node, p in paces.items() if latest - p.at <= window}


def _pace(samples: Sequence[Sample], window: float) -> _Pace | None:
    """None when it does not count: starved, with a new parent, or not known for long enough."""
    run: list[Sample] = []
    for s in reversed(samples):
        if s.starved or (run and (s.parents != run[0].parents or run[0].at - s.at > 1.25 * window)):
            break
        run.append(s)
    run.reverse()
    if len(run) < 3 or run[-1].at - run[0].at < 0.8 * window:
        return None
    start, end = run[0], run[-1]
    half = (end.at - start.at) / 2
    middle = _at(run, start.at + half)
    return _Pace(
        end.at,
        (middle - start.watermark) / half,
        (end.watermark - middle) / half,
        frozenset(p for p in end.parents if p is not None),
    )


def _at(run: Sequence[Sample], time: float) -> float:
    """The watermark between two samples, on a straight line."""
    after = next(i for i, s in enumerate(run) if s.at >= time)
    a, b = run[max(0, after - 1)], run[after]
    return b.watermark if b.at <= a.at else a.watermark + (b.watermark - a.watermark) * (time - a.at) / (b.at - a.at)


def _verdict(paces: Mapping[str, _Pace], kept: Slow) -> Slow:
    low: set[str] = set()
    result = dict(kept)
    for node, pace in paces.items():
        others = {n: p for n, p in paces.items() if n != node and n not in kept}
        related = any(n in pace.parents or node in p.parents for n, p in others.items())
        if len(others) < 2 and not related:
            continue
        first, second = median(p.first for p in others.values()), median(p.second for p in others.values())
        if node in kept:
            if pace.first >= WELL * first and pace.second >= WELL * second:
                del result[node]
        elif pace.first < SLOW * first and pace.second < SLOW * second:
            low.add(node)
    for node in sorted(low):
        parents = paces[node].parents
        if parents & (low | result.keys()):
            continue  # It gets what they get.
        shared = {p for had in kept.values() for p in had & parents}
        for parent in sorted(shared):
            if parent in paces:
                result[parent] = paces[parent].parents
        if not shared:
            result[node] = parents
    return result
