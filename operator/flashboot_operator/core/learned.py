"""Which replicas share arenas: the learned map from expected to full identities.

Replicas share a set of arenas (one per rank), named by a key. Before its engine runs, a replica is given the key that
replicas like it had last, else its own expected identity. Once its first rank has asked, what it asked for decides:

    a set of exactly this identity is held       that one, whatever its key: it is cloned, nothing is loaded
    nothing is held under the key that it has    that key: it may seed
    something else is held under it              `Fail`: refused. `LoadFromCheckpoint`: a set of its own, which it seeds
                                                 once its agent has told what differs

Only the first rank decides, since all ranks of a replica follow from the same settings; another one that asks for
something else than its set holds is refused. Pure. Nothing here can give an engine wrong bytes, the agent compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flashboot_agent.core.identity import digest_of
from flashboot_agent.wire.desired import WantedArena
from flashboot_agent.wire.observed_pod import ObservedRank
from flashboot_agent.wire.place import Place
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import Agent, Node, Pod, World
from flashboot_operator.core.leftover import leftovers
from flashboot_operator.core.plan import ArenaPlan, Owner

Held = Mapping[str, Mapping[Place, frozenset[str]]]
"""Key → place → full identities of the arenas that are complete, or being seeded, under it."""

FULL: Final = ("sealed", "updating", "seeding")
"""States of an arena whose identity is decided."""


@dataclass(frozen=True)
class Kinds:
    """Whose arenas each pod uses."""

    keys: Mapping[str, str]
    """Pod UID → key of its set."""
    heard: frozenset[str]
    """UIDs of pods of replicas whose first rank has asked."""
    undecided: frozenset[str]
    """UIDs of those of them whose first rank asked for something else than what their set holds."""
    learned: Mapping[str, str]
    """Expected identity → key, where a replica that was heard has another key than its expected identity."""
    held: Held
    products: Mapping[str, frozenset[str]]
    """Key → GPU products of the nodes that hold it."""

    def may_be_held(self, key: str, product: str) -> bool:
        """Whether an engine on a node of `product` that has not asked may ask for what is held under another key."""
        return any(product in products for other, products in self.products.items() if other != key)


def expected_of(owner: Owner, template_hash: str, node: Node) -> str:
    return expected_identity(
        owner.spec, template_hash=template_hash, gpu_product=node.product, architecture=node.architecture
    )


def kinds_of(owner: Owner, world: World, learned: Mapping[str, str]) -> Kinds:
    """`learned`: what was known before, of which only what is still held counts."""
    held = _held(owner, world)
    first = owner.all_places[0]
    replicas: dict[tuple[str, str], list[Pod]] = {}
    for pod in world.pods:
        node = world.nodes.get(pod.node or "")
        if pod.live and node is not None:
            replicas.setdefault((expected_of(owner, pod.hash, node), pod.replica or pod.uid), []).append(pod)
    asked = {replica: rank for replica, pods in replicas.items() if (rank := _asked(world, pods, first)) is not None}
    keys: dict[str, str] = {}
    undecided: set[str] = set()
    newest = {expected: key for expected, key in learned.items() if key in held}
    by_node: dict[tuple[str, str], str] = {}
    for replica, rank in sorted(asked.items(), key=lambda item: (item[1].hello_at, item[0])):
        expected, pods = replica[0], replicas[replica]
        home = newest.get(expected, expected)
        key = _decide(owner, expected, rank, home=home, attached=_attached(world, pods, first), held=held, first=first)
        newest[expected] = key
        keys |= {pod.uid: key for pod in pods}
        if rank.identity not in held.get(key, {}).get(first, ()):
            undecided |= {pod.uid for pod in pods}
        by_node |= {(expected, pod.node or ""): key for pod in pods}
    for replica, pods in replicas.items():
        if replica not in asked:
            near = next((by_node[place] for pod in pods if (place := (replica[0], pod.node or "")) in by_node), None)
            guess = near or newest.get(replica[0]) or replica[0]
            keys |= {pod.uid: _attached(world, pods, first) or guess for pod in pods}
    heard = frozenset(pod.uid for replica in asked for pod in replicas[replica])
    known = {e: k for e, k in newest.items() if e != k}
    return Kinds(keys, heard, frozenset(undecided), known, held, _products(owner, world))


def remembered(owner: Owner, world: World, identities: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What was learned, after a restart of the operator. identities: `status.identities` as the API server has them."""
    found = {}
    for each in identities:
        for node in world.nodes.values():
            expected = expected_of(owner, each["templateHash"], node)
            if node.product == each["gpuProduct"] and expected != each["expectedIdentity"]:
                found[expected] = each["expectedIdentity"]
    return found


def with_refusals(owner: Owner, plan: ArenaPlan, world: World, kinds: Kinds) -> ArenaPlan:
    """The plan, its nodes told which of their pods ask for something else than this arena and get nothing else."""
    there = kinds.held.get(plan.expected, {}).get(plan.place)
    if not there:
        return plan
    settled = kinds.heard if owner.spec.transfer.on_mismatch == "Fail" else kinds.heard - kinds.undecided
    refused: dict[str, list[str]] = {}
    for pod in plan.pods:
        rank = _rank(world.agents.get(pod.node or ""), pod, plan.place)
        if pod.uid in settled and rank is not None and rank.identity is not None and rank.identity not in there:
            refused.setdefault(pod.node or "", []).append(pod.uid)
    wanted: dict[str, WantedArena] = {
        node: each.model_copy(update={"refused": sorted(refused[node])}) if node in refused else each
        for node, each in plan.wanted.items()
    }
    return replace(plan, wanted=wanted)


def _decide(
    owner: Owner, expected: str, asked: ObservedRank, *, home: str, attached: str | None, held: Held, first: Place
) -> str:
    """Key of the set of a replica whose first rank has asked. home: what it was given until then."""
    fitting = [key for key, places in held.items() if asked.identity in places.get(first, ())]
    for key in (attached, home, expected):
        if key in fitting:
            return str(key)
    if fitting:
        return min(fitting)
    told = asked.problem is not None and asked.problem.reason == "IdentityMismatch"
    if owner.spec.transfer.on_mismatch == "Fail" or not told or not held.get(home, {}).get(first):
        return home
    return digest_of({"expected": expected, "identity": asked.identity})


def _held(owner: Owner, world: World) -> Held:
    found: dict[str, dict[Place, set[str]]] = {}
    useless = leftovers(owner, world)
    for agent in world.agents.values():
        for arena in agent.observed.arenas:
            if arena.model_replica_uid != owner.uid or arena.state not in FULL:
                continue
            if (agent.node, arena.arena) in useless:
                continue
            identities = {arena.identity} if arena.identity else _seeding(agent, arena.arena, arena.place)
            if identities:
                found.setdefault(arena.expected_identity, {}).setdefault(arena.place, set()).update(identities)
    return {key: {place: frozenset(all_) for place, all_ in places.items()} for key, places in found.items()}


def _products(owner: Owner, world: World) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for name, agent in world.agents.items():
        for arena in agent.observed.arenas:
            if arena.model_replica_uid == owner.uid and arena.state in FULL and name in world.nodes:
                found.setdefault(arena.expected_identity, set()).add(world.nodes[name].product)
    return {key: frozenset(products) for key, products in found.items()}


def _seeding(agent: Agent, arena: str, place: Place) -> set[str]:
    """What the engine that fills the arena asked for; it will be the arena's identity."""
    ranks = [rank for pod in agent.observed.pods if (rank := pod.rank(place)) is not None]
    return {rank.identity for rank in ranks if rank.arena == arena and rank.phase == "seeding" and rank.identity}


def _rank(agent: Agent | None, pod: Pod, place: Place) -> ObservedRank | None:
    seen = agent.pod(pod.uid) if agent is not None else None
    return seen.rank(place) if seen is not None else None


def _asked(world: World, pods: Iterable[Pod], first: Place) -> ObservedRank | None:
    """The replica's first rank, once it asked."""
    ranks = [_rank(world.agents.get(pod.node or ""), pod, first) for pod in pods]
    return next((rank for rank in ranks if rank is not None and rank.identity and rank.hello_at), None)


def _attached(world: World, pods: Iterable[Pod], first: Place) -> str | None:
    """Key of the set that the replica's first rank uses already."""
    for pod in pods:
        agent = world.agents.get(pod.node or "")
        rank = _rank(agent, pod, first)
        if agent is not None and rank is not None and rank.phase == "attached" and rank.arena:
            arena = agent.arena(rank.arena)
            return arena.expected_identity if arena is not None else None
    return None
