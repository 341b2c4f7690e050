"""Who is slow: from what each node said of its watermarks over the last seconds. Pure.

A slow node costs everybody below it, and a false accusation costs its place, so the rule asks for much:

* The pace of a node counts only while it had the same parents and was never *starved*: a parent that has no byte which
  we lack sets our pace, and says nothing against us.
* It is slow when, in both halves of the window, it got less than half of the measure. That is what its parents get,
  starved or not, if they fill too; below sealed parents it is the median of two or more others that count and are not
  below it. Where all others wait for it, it is what its link and its parents' caps should give it, though not more
  than any CPU can do.
* Never while it gets most of what its parents may send: a capped source is no fault of the child.
* The window is a second, longer where that is fewer than eight chunks.
* When a second node is slow below the same parent, the parent is at fault, not the node.
* Who was found slow stays so until it keeps up with the measure again, and with half of the fastest.

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

    def below(self, measure: tuple[float, float], share: float) -> bool:
        return self.first < share * measure[0] and self.second < share * measure[1]

    def above(self, measure: tuple[float, float], share: float) -> bool:
        return self.first >= share * measure[0] and self.second >= share * measure[1]


MODEST = 1e9
"""Bytes a second that every node can receive and verify, whatever its link."""

Slow = Mapping[str, frozenset[str]]
"""Slow node → the parents that it had when it was found slow."""


def judge(samples: Mapping[str, Sequence[Sample]], before: Slow, allowed: Mapping[str, float]) -> Slow:
    """Who is slow now.

    samples: of each node whose arena fills, in order of time. before: the last verdict. allowed: node → bytes a second
    that its link and its parents' caps let it have, for those of which it is known.
    """
    kept = {node: parents for node, parents in before.items() if node in samples}
    for window in WINDOWS_S:
        paces = _paces(samples, window)
        well = {node: p for node, p in paces.items() if node not in kept}
        if not well or median(p.whole for p in well.values()) * window < CHUNKS * DIGEST_CHUNK_BYTES:
            continue
        return _verdict(samples, paces, kept, allowed, window)
    return kept


def _below(samples: Mapping[str, Sequence[Sample]]) -> dict[str, set[str]]:
    """Node → all who get some lane by way of it."""
    below: dict[str, set[str]] = {}
    for node, said in samples.items():
        above = {p for p in (said[-1].parents if said else ()) if p is not None}
        seen: set[str] = set()
        while above - seen:
            at = min(above - seen)
            seen.add(at)
            below.setdefault(at, set()).add(node)
            above |= {p for p in (samples[at][-1].parents if samples.get(at) else ()) if p is not None}
    return below


def _paces(samples: Mapping[str, Sequence[Sample]], window: float) -> dict[str, _Pace]:
    paces = {node: p for node, s in samples.items() if (p := _pace(s, window)) is not None}
    latest = max((p.at for p in paces.values()), default=0.0)
    return {node: p for node, p in paces.items() if latest - p.at <= window}


def _pace(samples: Sequence[Sample], window: float, *, whatever: bool = False) -> _Pace | None:
    """None when it does not count: starved or with a new parent (unless `whatever`), or not known for long enough."""
    run: list[Sample] = []
    for s in reversed(samples):
        if run and run[0].at - s.at > 1.25 * window:
            break
        if not whatever and (s.starved or (run and s.parents != run[0].parents)):
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


def _verdict(
    samples: Mapping[str, Sequence[Sample]],
    paces: Mapping[str, _Pace],
    kept: Slow,
    allowed: Mapping[str, float],
    window: float,
) -> Slow:
    result, below = dict(kept), _below(samples)
    low: set[str] = set()
    all_ = {node: _pace(s, window, whatever=True) for node, s in samples.items()}
    best = max((p.whole for p in all_.values() if p is not None), default=0.0)
    for node, pace in paces.items():
        if above := pace.parents & samples.keys():
            measure = _least([all_[p] for p in above])
        else:
            others = [p for n, p in paces.items() if n != node and n not in kept and n not in below.get(node, ())]
            measure = _median(others)
            if measure is None and node in below and node in allowed:
                measure = (min(allowed[node], MODEST),) * 2
        if measure is None or (node in kept and pace.parents & kept.keys()):
            continue  # To keep up with one that is slow proves nothing.
        if node in kept:
            if pace.above(measure, WELL) and pace.whole >= SLOW * best:
                del result[node]
        elif pace.below(measure, SLOW) and (node not in allowed or pace.whole < WELL * allowed[node]):
            low.add(node)
    for node in sorted(low):
        shared = {p for had in kept.values() for p in had & paces[node].parents}
        result.update({p: paces[p].parents for p in shared if p in paces} if shared else {node: paces[node].parents})
    return result


def _least(paces: Sequence[_Pace | None]) -> tuple[float, float] | None:
    known = [p for p in paces if p is not None]
    return (min(p.first for p in known), min(p.second for p in known)) if len(known) == len(paces) else None


def _median(paces: Sequence[_Pace]) -> tuple[float, float] | None:
    return (median(p.first for p in paces), median(p.second for p in paces)) if len(paces) >= 2 else None
