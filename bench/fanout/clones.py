"""One clone to all targets of a rack, as a sample: how long, how much left the source, how much came twice."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime

from bench.kit.paired import RunFailed, Sample
from bench.kit.say import say
from bench.rig.links import GOODPUT, Links
from bench.rig.rack import Filled, Rack, kill
from flashboot_agent.core.chunks import DIGEST_CHUNK_BYTES
from tests.component.agents import Node

_DEADLINE_FACTOR = 12.0
"""A clone may take so many times S/B before it counts as failed; agents' deadlines (10 s without a byte) are in it."""
_SLACK = 40.0


def deadline(rack: Rack, links: Links) -> float:
    return _SLACK + _DEADLINE_FACTOR * ideal_seconds(rack, links)


def ideal_seconds(rack: Rack, links: Links) -> float:
    """S/B: the arena over one link, after the overhead of frames."""
    return len(rack.data) * 8 / (links.mbit * 1e6 * GOODPUT)


def clone(rack: Rack, links: Links, *, slow: Node | None = None, victim: Victim | None = None) -> Sample:
    """Fill all targets, look, and empty them. `seconds`: from the first byte that was asked for to the last seal of a
    node that is neither slow nor dead. Raises RunFailed."""
    targets = rack.nodes[1:]
    sent = _source_bytes(rack)
    on_wire, cpu = links.sent(0), rack.cpu()
    try:
        filled = rack.fill(targets, deadline(rack, links), victim.look if victim else lambda: None)
        if victim is not None and victim.killed is None:
            raise RunFailed("no inner node was half full in time to be killed")
        cpu = rack.cpu() - cpu
        sent, on_wire = _source_bytes(rack) - sent, links.sent(0) - on_wire
    except (AssertionError, OSError) as error:  # what the nodes of tests raise
        raise RunFailed(f"{type(error).__name__}: {error}") from error
    finally:
        rack.empty(targets)
    began = min(f.began for f in filled)
    counted = [f for f in filled if slow is None or f.node != slow.name]
    sample: Sample = {
        "seconds": (max(f.ended for f in counted) - began).total_seconds(),
        "source": sent / len(rack.data),
        "source_on_wire": on_wire / len(rack.data),
        "cpu": cpu,
        "twice": sum(max(0, f.arena.bytes_in - f.arena.bytes) for f in filled),
        "refetched": sum(f.arena.refetched_chunks for f in filled) * DIGEST_CHUNK_BYTES,
        "nodes": [_facts(f, began) for f in filled],
        "killed": victim.killed if victim else None,
    }
    if slow is not None:
        sample["slow_seconds"] = max((f.ended - began).total_seconds() for f in filled if f.node == slow.name)
    return sample


def _source_bytes(rack: Rack) -> int:
    arena = rack.nodes[0].arena(rack.arena)
    if arena is None:
        raise RunFailed(f"{rack.nodes[0].name} lost the arena that it is the source of")
    return arena.bytes_out


def _facts(filled: Filled, began: datetime) -> dict[str, object]:
    arena = filled.arena
    return {
        "node": filled.node,
        "began": (filled.began - began).total_seconds(),
        "ended": (filled.ended - began).total_seconds(),
        "transport": arena.transport,
        "paths": {path.node: path.bytes_in for path in arena.paths},
        "refetched": arena.refetched_chunks,
    }


@dataclass
class Victim:
    """Kills a node in the middle of the tree when it is half full."""

    rack: Rack
    killed: str | None = None
    _looked: float = field(default=0.0, repr=False)

    def look(self) -> None:
        if self.killed is not None or time.monotonic() - self._looked < 0.1:
            return
        self._looked = time.monotonic()
        node = self._inner()
        arena = node.arena(self.rack.arena) if node is not None else None
        if node is None or arena is None or arena.watermark < arena.bytes // 2:
            return
        kill(node)
        self.killed = node.name
        say(f"killed {node.name} at {arena.watermark / arena.bytes:.0%}, parent of {', '.join(arena.children)}")

    def _inner(self) -> Node | None:
        """Of those that are parents: the one in the middle by depth."""
        parents = {n.name: self._parent(n) for n in self.rack.nodes[1:]}
        inner = sorted(
            (n for n in self.rack.nodes[1:] if n.name in parents.values()), key=lambda n: _depth(parents, n.name)
        )
        return inner[len(inner) // 2] if inner else None

    def _parent(self, node: Node) -> str | None:
        arena = self.rack.arena_of(node)
        return arena.parent if arena is not None else None


def _depth(parents: dict[str, str | None], node: str) -> int:
    """Bounded by the number of nodes: two agents may have been heard at different times."""
    depth = 0
    at: str | None = node
    while at is not None and depth < len(parents):
        at, depth = parents.get(at), depth + 1
    return depth
