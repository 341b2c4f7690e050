"""What was decided about the arenas of one ModelReplica, and what has to be remembered of it, as values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.place import Place
from flashboot_operator.api.modelreplica import Spec
from flashboot_operator.core.design import Design
from flashboot_operator.core.election import Source
from flashboot_operator.core.facts import Pod, World
from flashboot_operator.core.fanout.model import Plan
from flashboot_operator.core.fanout.pace import Slow
from flashboot_operator.core.ranks import places_of_pod


@dataclass(frozen=True)
class Memory:
    """arena → present source nodes, home first; arena → UIDs of the present seed pods; arena → who is slow
    (fanout/pace.py)."""

    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    slow: Mapping[str, Slow] = field(default_factory=dict)
    learned: Mapping[str, str] = field(default_factory=dict)
    """Expected identity → key of the set of arenas that its engines asked for, where it is another one (learned.py)."""
    wanted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Arena → the nodes that were to have it. Any other lets go of it by now, whatever it said last."""


@dataclass(frozen=True)
class Loading:
    """Who brings the arena to a domain for itself."""

    seed: Pod | None = None
    image_on: str | None = None


@dataclass(frozen=True)
class ArenaPlan:
    """What was decided about one arena: one rank of the replicas that are alike."""

    arena: str
    place: Place
    expected: str
    """Key of its set: the expected identity of the replicas that made it, or one that was learned (learned.py)."""
    template_hash: str
    product: str
    pods: tuple[Pod, ...]
    """Live pods that need it, by the time they were bound."""
    sealed: Mapping[str, ObservedArena]
    """Node → arena, for nodes that hold it complete; those that are silent for a moment are included."""
    source: Source | None = None
    """Home: it feeds the domains that have no source of their own. None while the arena of any rank is nowhere
    complete: a replica is cloned whole or not at all."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Domain → its source, home first; without those whose bytes differ from home's."""
    seed: Pod | None = None
    image_on: str | None = None
    """The node that fills the arena from the image on its disk: the seed's, or one without a pod. Nothing is loaded
    from the checkpoint then."""
    apart: Mapping[str, Loading] = field(default_factory=dict)
    """Domain → how it comes there, where others may not feed it (`transfer.domainPolicy: RequireSame`)."""
    lanes: Plan = ()
    """Per lane: child → parent."""
    slow: Slow = field(default_factory=dict)
    """Nodes that hold up others, and are therefore at the tail."""
    wanted: Mapping[str, WantedArena] = field(default_factory=dict)

    @property
    def copies(self) -> list[str]:
        """Nodes that clone it ahead of a drain, though no pod there needs it."""
        return sorted(node for node, wanted in self.wanted.items() if wanted.role == "copy")

    def within(self, domain: str) -> ArenaPlan:
        """As a domain sees it that has to load for itself; itself for others."""
        if (loading := self.apart.get(domain)) is None:
            return self
        return replace(self, source=None, sources={}, seed=loading.seed, image_on=loading.image_on)


@dataclass(frozen=True)
class Owner:
    """The ModelReplica itself."""

    namespace: str
    name: str
    uid: str
    spec: Spec
    template_hash: str | None
    """Hash of the present template's engine, None when pods are adopted."""
    going: bool = False
    template_refused: bool = False
    """No pod can be made from the present template."""

    @property
    def wants_replicas(self) -> bool:
        return not self.going and self.spec.replicas != 0

    @property
    def pods_per_replica(self) -> int:
        return self.spec.group.size

    def places(self, pod: Pod) -> list[Place]:
        """The ranks that the pod runs; none of a pod that is one too many."""
        return self._places(pod.index) if pod.index < self.pods_per_replica else []

    @property
    def all_places(self) -> list[Place]:
        """All ranks of a replica."""
        return [place for index in range(self.pods_per_replica) for place in self._places(index)]

    def _places(self, index: int) -> list[Place]:
        sizes = self.spec.parallelism
        return places_of_pod(tensor=sizes.tensor, pipeline=sizes.pipeline, pods=self.pods_per_replica, index=index)


def seeds_of(plans: Iterable[ArenaPlan]) -> dict[str, frozenset[str]]:
    """Arena → UIDs of the pods that were elected to load it; of arenas that have any."""
    found = {}
    for plan in plans:
        seeds = [plan.seed, *(loading.seed for loading in plan.apart.values())]
        if uids := frozenset(seed.uid for seed in seeds if seed is not None):
            found[plan.arena] = uids
    return found


def memory_of(plans: Iterable[ArenaPlan], learned: Mapping[str, str] | None = None) -> Memory:
    """What the next look has to know of this one."""
    plans = tuple(plans)
    return Memory(
        {p.arena: tuple(each.node for each in p.sources.values()) for p in plans if p.sources},
        seeds_of(plans),
        {p.arena: p.slow for p in plans if p.slow},
        learned or {},
        {p.arena: frozenset(p.wanted) for p in plans},
    )


def wanted_of(plans: Iterable[ArenaPlan]) -> dict[str, list[WantedArena]]:
    """Node → all that it is told of these arenas."""
    found: dict[str, list[WantedArena]] = {}
    for plan in plans:
        for node, wanted in plan.wanted.items():
            found.setdefault(node, []).append(wanted)
    return found


@dataclass(frozen=True)
class Decision:
    """All that was decided of one ModelReplica at one look, and what it was decided from."""

    owner: Owner
    world: World
    plans: list[ArenaPlan]
    generation: int
    """Of the object that was looked at."""
    design: Design | None = None
    """What its pods are made of; None where they are adopted."""
