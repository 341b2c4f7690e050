"""Which replica loads the checkpoint when no node holds its arenas, from what agents and pods say.

One whose nodes have images of the arenas on their disks is the first choice: its agents load those, and the engine
loads nothing. A node with images and without a pod is the second: it loads for all. One whose engine does not come to
ask is passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashboot_agent.wire.place import Place
from flashboot_operator.core.election import SeedCandidate, elect_seed
from flashboot_operator.core.facts import Pod, World
from flashboot_operator.core.plan import ArenaPlan

SEED_FAILURES = frozenset(
    {
        "SeedFailed",
        "CommitRefused",
        "CheckpointMissing",
        "CheckpointMalformed",
        "CheckpointIndexMissingShard",
        "CheckpointTruncated",
        "UnsupportedModel",
        "UnsupportedEngine",
        "InsufficientMemory",
    }
)


CANNOT_START = frozenset({"ImagePullFailed", "ContainerNotCreated", "EngineCrashing", "PodFailed"})
"""What kubelet says of a pod whose engine will not ask soon."""
HELLO_S = 180.0
"""So long after its container started, or its checkpoint was put right, an engine has asked for its weights, or it
hangs. Before, it only imports."""


def silent_engine(world: World, pod: Pod) -> bool:
    """Its container has been running for long, and no rank of its engine has asked for weights. One that says what
    is wrong with its checkpoint does not hang: it goes on when that is put right, and only then begins to import."""
    agent = world.agents.get(pod.node or "")
    seen = agent.pod(pod.uid) if agent is not None else None
    if agent is None or not agent.fresh or seen is None or seen.hello_at is not None:
        return False
    before = 0.0
    """Of the time that it runs, what came before it was heard last: a difference of two times of its node's clock."""
    if seen.heard_at is not None and pod.started is not None:
        before = max(0.0, (seen.heard_at - pod.started).total_seconds())
    return seen.problem is None and world.running_s.get(pod.uid, 0.0) - before > HELLO_S


def at_work(world: World, node: str, there: Sequence[Pod], place: Place) -> str | None:
    """UID of the pod whose engine fills the node's arena of this rank now."""
    agent = world.agents.get(node)
    for pod in there:
        seen = agent.pod(pod.uid) if agent is not None else None
        rank = seen.rank(place) if seen is not None else None
        if rank is not None and rank.phase == "seeding":
            return pod.uid
    return None


def seed_of(
    world: World,
    plans: Sequence[ArenaPlan],
    pods: Sequence[Pod],
    present: Mapping[str, frozenset[str]],
    *,
    pods_per_replica: int,
) -> list[Pod]:
    """The pods of the replica that shall load the checkpoint, all its ranks; none while no replica can.

    A rank that failed has failed the replica. `present`: arena → UIDs of the pods chosen before; nothing after a
    restart, when the agents know whom they were told.
    """
    replicas: dict[str, list[Pod]] = {}
    for pod in pods:
        replicas.setdefault(pod.replica or pod.uid, []).append(pod)
    chosen_before = {uid for plan in plans for uid in present.get(plan.arena, ())}
    told = next((key for key, mine in replicas.items() if any(pod.uid in chosen_before for pod in mine)), None)
    candidates = []
    for key, mine in replicas.items():
        seen = [agent.pod(pod.uid) for pod in mine if (agent := world.agents.get(pod.node or "")) is not None]
        here = [each for each in seen if each is not None]
        if len(here) < pods_per_replica:
            continue
        if told is None and any(_was_told(world, pod, plans) for pod in mine):
            told = key
        failed = any(problem.reason in SEED_FAILURES for each in here for problem in each.problems) or any(
            (pod.trouble is not None and pod.trouble.reason in CANNOT_START) or silent_engine(world, pod)
            for pod in mine
        )
        seeding = any(rank.phase == "seeding" for each in here for rank in each.ranks)
        bound = max(pod.bound or pod.created for pod in mine)
        candidates.append(SeedCandidate(key, bound, seeding, failed, image=_has_images(world, plans, mine)))
    return replicas.get(elect_seed(candidates, told) or "", [])


def has_image(world: World, node: str | None, arena: str) -> bool:
    agent = world.agents.get(node or "")
    return agent is not None and any(image.arena == arena for image in agent.observed.images)


def loaders_of(world: World, plans: Sequence[ArenaPlan], chosen: Sequence[Pod]) -> dict[str, str] | None:
    """Arena → a node without a pod that has an image of it; of all ranks, or None. Also None where the elected pods
    (the pods, while none is elected) have images of their own, or load already; but a load that has begun goes on."""
    found: dict[str, str] = {}
    begun = False
    for plan in plans:
        taken = {pod.node for pod in plan.pods}
        able = [node for node in world.agents if node not in taken and _can_load(world, node, plan.arena)]
        loading = [node for node in able if world.agents[node].arena(plan.arena) is not None]
        if not able:
            return None
        found[plan.arena], begun = min(loading or able), begun or bool(loading)
    busy = any(at_work(world, pod.node or "", [pod], plan.place) for pod in chosen for plan in plans)
    pods = chosen or list({pod.uid: pod for plan in plans for pod in plan.pods}.values())
    own = _has_images(world, plans, pods)
    return None if busy or (own and not begun) else found


def _can_load(world: World, name: str, arena: str) -> bool:
    node, agent = world.nodes.get(name), world.agents[name]
    begun = agent.arena(arena)
    stuck = begun is not None and begun.problem is not None
    sound = node is not None and node.ready and not node.cordoned and agent.fresh
    return sound and not stuck and has_image(world, name, arena)


def _has_images(world: World, plans: Sequence[ArenaPlan], pods: Sequence[Pod]) -> bool:
    """Whether each rank of these pods has an image on its own node's disk."""
    mine = [(plan.arena, pod) for plan in plans for pod in pods if pod in plan.pods]
    return bool(mine) and all(has_image(world, pod.node, arena) for arena, pod in mine)


def _was_told(world: World, pod: Pod, plans: Sequence[ArenaPlan]) -> bool:
    agent = world.agents.get(pod.node or "")
    return agent is not None and any(agent.put_seeds.get(plan.arena) == pod.uid for plan in plans)
