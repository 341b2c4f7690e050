"""What all ModelReplicas together want of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flashboot_agent.wire.desired import Probe, WantedArena
from flashboot_operator.core.facts import Key

Arenas = Mapping[str, Sequence[WantedArena]]
Probes = Mapping[str, Sequence[Probe]]
"""Both by node."""


@dataclass(frozen=True)
class Wanted:
    """All that one node shall be told, in an order that does not depend on that of the ModelReplicas."""

    arenas: list[WantedArena]
    probes: list[Probe]
    barred: list[str]


@dataclass(frozen=True)
class Wish:
    """Of one ModelReplica."""

    arenas: Arenas = field(default_factory=dict)
    probes: Probes = field(default_factory=dict)
    barred: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Node → UIDs of pods there that get no arena."""

    def concerns(self, node: str) -> bool:
        return node in self.arenas or node in self.probes or node in self.barred

    def differs(self, other: Wish, node: str) -> bool:
        """For this node."""
        mine, theirs = self.arenas.get(node), other.arenas.get(node)
        others = self.probes.get(node), self.barred.get(node)
        return mine != theirs or others != (other.probes.get(node), other.barred.get(node))


class Wishes:
    def __init__(self) -> None:
        self._of: dict[Key, Wish] = {}

    def get(self, key: Key) -> Wish:
        return self._of.get(key, Wish())

    def put(self, key: Key, wish: Wish) -> None:
        if wish == Wish():
            self._of.pop(key, None)
        else:
            self._of[key] = wish

    def whose(self, node: str) -> set[Key]:
        """Who wants something of the node."""
        return {key for key, wish in self._of.items() if wish.concerns(node)}

    def of(self, node: str) -> Wanted:
        arenas = (arena for wish in self._of.values() for arena in wish.arenas.get(node, ()))
        probes = (probe for wish in self._of.values() for probe in wish.probes.get(node, ()))
        barred = {uid for wish in self._of.values() for uid in wish.barred.get(node, ())}
        return Wanted(
            sorted(arenas, key=lambda a: a.arena), sorted(probes, key=lambda p: (p.arena, p.peer.node)), sorted(barred)
        )
