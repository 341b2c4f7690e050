"""How far each pod is, in a line for people: names the pod, its rank, the node, the percent and on whom it waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.observed_pod import ObservedPod, ObservedRank
from flashboot_agent.wire.place import Place
from flashboot_operator.core.devices import more_than_any
from flashboot_operator.core.facts import Agent, Pod, Trouble, World, domain_of
from flashboot_operator.core.plan import ArenaPlan
from flashboot_operator.core.ranks import names_of
from flashboot_operator.core.reasons import Stage
from flashboot_operator.core.seeding import HELLO_S, silent_engine
from flashboot_operator.core.targets import lanes_of

ORDER: tuple[Stage, ...] = (
    "AgentSilent",
    "Seeding",
    "WaitingForSeed",
    "Cloning",
    "LoadingImage",
    "Attaching",
    "EngineStarting",
    "WaitingForVolumes",
    "WaitingForNodes",
    "Ready",
)
"""Which stage names a pod whose ranks, and the condition when pods, are in several."""

SILENCE_S = 10.0
"""An agent that is silent for this long is a trouble; before, it may just be restarting."""


@dataclass(frozen=True)
class Line:
    pod: str
    stage: Stage
    text: str
    trouble: Trouble | None = None


def line_of(pod: Pod, plans: Sequence[ArenaPlan], world: World) -> Line:
    """The state of one pod: of the rank that is least far. `plans`: of the arenas of its ranks."""
    if pod.node is None:
        return Line(pod.name, "WaitingForNodes", f"pod {pod.name} is not bound to a node yet", _unbound(pod, world))
    plans = [plan.within(domain_of(world, pod.node)) for plan in plans]
    agent = world.agents.get(pod.node)
    node = world.nodes.get(pod.node)
    kubelet = node is None or node.ready
    where = f"pod {pod.name}: {names_of([plan.place for plan in plans] or [Place()])} on {pod.node}"
    if agent is None or not agent.fresh:
        return _silent(
            pod, where, world.missing_agents.get(pod.node, 0.0), skew=_skew(where, pod, world), kubelet=kubelet
        )
    seen = agent.pod(pod.uid)
    ranks = [_rank_line(pod, plan.place, plan, agent, seen) for plan in plans] or [
        _rank_line(pod, Place(), None, agent, seen)
    ]
    worst = min(ranks, key=lambda line: ORDER.index(line.stage))
    troubles = (line.trouble for line in ranks)
    whole = _of_the_whole(pod, plans, seen) or _skew(f"pod {pod.name} on {pod.node}", pod, world) or pod.trouble
    trouble = next((each for each in troubles if each), None) or whole or _quiet(where, pod, world, kubelet=kubelet)
    left = sum(1 for line in ranks if line.stage not in ("EngineStarting", "Ready"))
    more = f"; {left} of its {len(ranks)} ranks have no weights yet" if left > 1 else ""
    return Line(pod.name, worst.stage, worst.text + more, trouble)


def _rank_line(pod: Pod, place: Place, plan: ArenaPlan | None, agent: Agent, seen: ObservedPod | None) -> Line:
    where = f"pod {pod.name}: rank {place} on {pod.node}"
    arena, rank = agent.arena(plan.arena) if plan else None, seen.rank(place) if seen else None
    stage, words = _unknown(pod) if seen is None else _known(pod, rank, arena, plan, agent)
    return Line(pod.name, stage, f"{where} {words}", trouble_of(where, rank, arena))


def _of_the_whole(pod: Pod, plans: Sequence[ArenaPlan], seen: ObservedPod | None) -> Trouble | None:
    """What is wrong with the engine rather than with one of its ranks."""
    if seen is None:
        return None
    where = f"pod {pod.name} on {pod.node}"
    if seen.problem is not None:
        return Trouble(seen.problem.reason, f"{where}: {seen.problem.message}")
    expected = [plan.place for plan in plans]
    odd = [rank.place for rank in seen.ranks if rank.hello_at is not None and rank.place not in expected]
    if not odd or not expected:
        return None
    words = "spec.parallelism must say what the engine's arguments say"
    text = f"{where}: its engine has {names_of(odd)}, expected are {names_of(expected)}; {words}"
    return Trouble("RanksDiffer", text)


def _coarse(seconds: float) -> str:
    """In few steps: whatever changes in a message is a status write, also while nothing happens."""
    steps = ((86400, "a day"), (3600, "an hour"), (600, "10 minutes"), (60, "a minute"))
    return next((words for least, words in steps if seconds >= least), f"{SILENCE_S:.0f} s")


def _unbound(pod: Pod, world: World) -> Trouble | None:
    """What the scheduler says, or, where it says only that GPUs are short, that they always will be."""
    too_many = more_than_any(pod.gpus, (node.gpus for node in world.nodes.values()))
    if pod.trouble is None or too_many is None:
        return pod.trouble
    return Trouble("MoreRanksThanDevices", f"pod {pod.name} is not bound to a node: {too_many}")


def _skew(where: str, pod: Pod, world: World) -> Trouble | None:
    if (said := world.skewed.get(pod.node or "")) is None:
        return None
    step = "install one version of the chart for operator and agents; engines that serve are not affected"
    return Trouble("AgentVersionUnsupported", f"{where}: {said}; {step}")


def _quiet(where: str, pod: Pod, world: World, *, kubelet: bool) -> Trouble | None:
    """Who is silent though the agent answers: the kubelet, or the engine."""
    if not kubelet:
        text = f"{where}: the node is NotReady, its agent answers: what it holds can still be cloned"
        return Trouble("NodeNotReady", f"{text}; look at the kubelet there")
    if silent_engine(world, pod):
        text = f"{where}: the engine's container runs and has not asked for its weights for {HELLO_S:.0f} s or more"
        return Trouble("EngineSilent", f"{text}; look at its log. Other pods do not wait for it")
    return None


def _silent(pod: Pod, where: str, silent: float, *, skew: Trouble | None, kubelet: bool) -> Line:
    """Who serves goes on serving, whatever we hear."""
    trouble = skew or pod.trouble
    if not kubelet:
        text = f"{where}: the node is NotReady and its agent does not answer: the node is down, or cut off"
        words = "what it held does not count any more; bring it back, or delete the node so that its pods move at once"
        trouble = Trouble("NodeNotReady", f"{text}; {words}")
    if trouble is None and silent >= SILENCE_S:
        text = (
            f"{where}: the agent does not answer (for {_coarse(silent)} or more); look at the flashboot-agent pod there"
        )
        trouble = Trouble("AgentUnavailable", text)
    if pod.ready:
        return Line(pod.name, "Ready", f"{where} is Ready, the agent of the node is silent", trouble)
    return Line(pod.name, "AgentSilent", f"{where} waits: the agent of the node does not answer", trouble)


def _unknown(pod: Pod) -> tuple[Stage, str]:
    if pod.ready:
        return "Attaching", "is Ready, but without FlashBoot's volume: the agent does not know it"
    return "WaitingForVolumes", "waits for its volume; if that lasts, look at the flashboot-door pod there"


def _known(
    pod: Pod, rank: ObservedRank | None, arena: ObservedArena | None, plan: ArenaPlan | None, agent: Agent
) -> tuple[Stage, str]:
    if rank is not None and rank.phase == "attached":
        words = f"has its weights, its engine is not Ready yet; kubectl logs {pod.name} says what it does"
        return ("Ready", "is Ready") if pod.ready else ("EngineStarting", words)
    if arena is not None and arena.state == "sealed":
        return "Attaching", "has all bytes, its engine has not attached yet"
    if arena is not None and arena.way == "load":
        percent = f", at {arena.watermark * 100 // arena.bytes} %" if arena.bytes else ""
        return "LoadingImage", f"loads from the image on this node{percent}"
    if plan is None or plan.source is not None:
        return "Cloning", _cloning(plan, agent.node, arena)
    if plan.seed is not None and plan.seed.uid == pod.uid:
        size = f" into an arena of {arena.bytes} bytes" if arena is not None and arena.bytes else ""
        return "Seeding", f"loads the checkpoint as the seed{size}"
    on = f"the seed, pod {plan.seed.name} on {plan.seed.node}" if plan.seed else "a pod that can load the checkpoint"
    if plan.image_on is not None:
        on = f"{plan.image_on}, which loads the image on its disk"
    return "WaitingForSeed", f"waits for {on}"


def _cloning(plan: ArenaPlan | None, node: str, arena: ObservedArena | None) -> str:
    parent = _parents(plan, node, arena)
    if arena is None or not arena.bytes:
        return f"starts to clone from {parent}" if parent else "waits for a free peer to clone from"
    percent = arena.watermark * 100 // arena.bytes
    return f"at {percent} % from {parent}" if parent else f"at {percent} %, waits for a free peer to clone from"


def _parents(plan: ArenaPlan | None, node: str, arena: ObservedArena | None) -> str | None:
    """From whom the bytes come, in the order of the lanes: several only where the lanes' trees differ."""
    seen = [lane.parent for lane in lanes_of(arena)] if arena else []
    told = [edges.get(node) for edges in plan.lanes] if plan else []
    names = dict.fromkeys(name for name in seen if name) or dict.fromkeys(name for name in told if name)
    return ", ".join(names) or None


def trouble_of(where: str, rank: ObservedRank | None, arena: ObservedArena | None) -> Trouble | None:
    """What the agent says is wrong with one rank; `where` names it."""
    for problem in (rank.problem if rank else None, arena.problem if arena and arena.state != "sealed" else None):
        if problem is not None:
            return Trouble(problem.reason, f"{where}: {problem.message}")
    return None
