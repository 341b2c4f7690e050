"""How far each pod is, in a line for people: names the pod, its rank, the node, the percent and on whom it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashboot_agent.wire.control import ObservedArena, ObservedPod
from flashboot_operator.core.facts import Agent, Pod, Trouble, World
from flashboot_operator.core.replica import ArenaPlan
from flashboot_operator.core.targets import lanes_of

Stage = Literal[
    "WaitingForNodes",
    "WaitingForVolumes",
    "AgentSilent",
    "Seeding",
    "WaitingForSeed",
    "Cloning",
    "LoadingImage",
    "Attaching",
    "EngineStarting",
    "Ready",
]

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
)
"""Which stage names the condition when pods are in several."""

SILENCE_S = 10.0
"""An agent that is silent for this long is a trouble; before, it may just be restarting."""


@dataclass(frozen=True)
class Line:
    pod: str
    stage: Stage
    text: str
    trouble: Trouble | None = None


def line_of(pod: Pod, plan: ArenaPlan | None, world: World) -> Line:
    """The state of one pod."""
    if pod.node is None:
        return Line(pod.name, "WaitingForNodes", f"pod {pod.name} is not bound to a node yet", pod.trouble)
    where = f"pod {pod.name}: rank tp0 on {pod.node}"
    agent = world.agents.get(pod.node)
    if agent is None or not agent.fresh:
        return _silent(pod, where, world.missing_agents.get(pod.node, 0.0))
    seen, arena = agent.pod(pod.uid), agent.arena(plan.arena) if plan else None
    stage, words = _unknown(pod) if seen is None else _known(pod, seen, arena, plan, agent)
    return Line(pod.name, stage, f"{where} {words}", _trouble(where, seen, arena) or pod.trouble)


def _silent(pod: Pod, where: str, silent: float) -> Line:
    """Who serves goes on serving, whatever we hear."""
    trouble = pod.trouble
    if trouble is None and silent >= SILENCE_S:
        since = f"{silent // 10 * 10:.0f} s or more"
        text = f"{where}: the agent does not answer (for {since}); look at the flashboot-agent pod there"
        trouble = Trouble("AgentUnavailable", text)
    if pod.ready:
        return Line(pod.name, "Ready", f"{where} is Ready, the agent of the node is silent", trouble)
    return Line(pod.name, "AgentSilent", f"{where} waits: the agent of the node does not answer", trouble)


def _unknown(pod: Pod) -> tuple[Stage, str]:
    if pod.ready:
        return "Attaching", "is Ready, but without FlashBoot's volume: the agent does not know it"
    return "WaitingForVolumes", "waits for its volume"


def _known(
    pod: Pod, seen: ObservedPod, arena: ObservedArena | None, plan: ArenaPlan | None, agent: Agent
) -> tuple[Stage, str]:
    if seen.phase == "attached":
        return (
            ("Ready", "is Ready") if pod.ready else ("EngineStarting", "has its weights, its engine is not Ready yet")
        )
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


def _trouble(where: str, seen: ObservedPod | None, arena: ObservedArena | None) -> Trouble | None:
    for problem in (seen.problem if seen else None, arena.problem if arena and arena.state != "sealed" else None):
        if problem is not None:
            return Trouble(problem.reason, f"{where}: {problem.message}")
    return None
