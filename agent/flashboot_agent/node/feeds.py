"""Who feeds an arena: of each lane the parent, of each peer the bytes. In memory only: a restarted agent counts anew.

Written by the lanes' threads, read by whoever observes.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, replace

from flashboot_agent.wire.observed_arena import Path


@dataclass(frozen=True)
class Feed:
    """Of one lane: its present or last parent."""

    parent: str | None = None
    transport: str | None = None
    reason: str | None = None
    """Why this transport."""
    starved: bool = False


class Feeds:
    """Of one arena. Thread-safe."""

    def __init__(self, lanes: int) -> None:
        self._lock = threading.Lock()
        self._lanes = [Feed()] * lanes
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._repairs = 0

    def __getitem__(self, lane: int) -> Feed:
        return self._lanes[lane]

    def begin(self, lane: int, feed: Feed) -> None:
        """`lane` pulls from another parent now, or from the same again."""
        with self._lock:
            self._lanes[lane] = feed

    def arrived(self, lane: int, nbytes: int, *, starved: bool) -> bool:
        """Bytes came for `lane` from its parent. True when `starved` is news."""
        with self._lock:
            feed = self._lanes[lane]
            self._bytes[feed.parent or "", feed.transport or ""] += nbytes
            self._lanes[lane] = replace(feed, starved=starved)
            return feed.starved != starved

    def repaired(self) -> None:
        """A lane left a parent that failed and goes on with another one."""
        with self._lock:
            self._repairs += 1

    @property
    def repairs(self) -> int:
        return self._repairs

    def bytes_by_transport(self) -> Counter[str]:
        with self._lock:
            total: Counter[str] = Counter()
            for (_, transport), nbytes in self._bytes.items():
                total[transport] += nbytes
            return total

    def paths(self) -> list[Path]:
        with self._lock:
            found = sorted(self._bytes.items())
        return [Path(node=node, transport=transport, bytes_in=count) for (node, transport), count in found if count][
            :64
        ]
