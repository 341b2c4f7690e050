"""How long it takes from a pod's binding, as the watch shows it, until the agent of its node has been told.

    seen (watch) → looked at (queue) → decided (plan) → acknowledged by the agent (put)

Each pod is measured once, for the first word about it: metrics, and a line in the log with which a slow one is found.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flashboot_agent.wire.desired import Desired

log = logging.getLogger(__name__)

MOST = 20_000
"""Pods that are followed at a time; beyond, new ones are not measured."""


@dataclass
class _Steps:
    seen: float
    seen_at: float
    """Wall clock, for the log."""
    looked: float = 0.0
    decided: float = 0.0


class Told:
    def __init__(self, observe: Callable[[Mapping[str, float]], None]) -> None:
        self._observe = observe
        self._steps: dict[str, _Steps] = {}
        self._done: set[str] = set()

    def bound(self, uid: str) -> None:
        """The pod is on a node, and was not when we last saw it."""
        if uid not in self._steps and uid not in self._done and len(self._steps) + len(self._done) < MOST:
            self._steps[uid] = _Steps(time.monotonic(), time.time())

    def gone(self, uid: str) -> None:
        self._steps.pop(uid, None)
        self._done.discard(uid)

    def decided(self, uids: Iterable[str], looked: float) -> None:
        """The plan has these pods; `looked`: when its making began (monotonic). The first plan counts."""
        for uid in uids:
            if (steps := self._steps.get(uid)) is not None and not steps.decided:
                steps.looked, steps.decided = looked, time.monotonic()

    def acknowledged(self, desired: Desired) -> None:
        now = time.monotonic()
        for uid in {uid for arena in desired.arenas for uid in arena.pods}:
            steps = self._steps.get(uid)
            if steps is None or not steps.decided:
                continue
            del self._steps[uid]
            self._done.add(uid)
            stages = {
                "queue": steps.looked - steps.seen,
                "plan": steps.decided - steps.looked,
                "put": now - steps.decided,
                "whole": now - steps.seen,
            }
            self._observe(stages)
            log.info(
                "agent told of a pod",
                extra={
                    "pod": uid,
                    "node": desired.node,
                    "seenAt": round(steps.seen_at, 4),
                    **{f"{stage}Ms": round(1000 * seconds, 1) for stage, seconds in stages.items()},
                },
            )
