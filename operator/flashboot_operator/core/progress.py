"""How far each pod is, in one line for people: names the pod, its rank, the node, the percent and on whom it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashboot_agent.wire.control import ObservedArena, ObservedPod, Place
from flashboot_operator.core.facts import Pod, Trouble, World
from flashboot_operator.core.replica import ArenaPlan

Stage = Literal[
    "Unbound", "Unpublished", "Seeding", "WaitingForSeed", "Cloning", "Attaching", "EngineStarting", "Ready", "Unknown"
]

ORDER: tuple[Stage, ...] = (
    "Unknown",
    "Seeding",
    "WaitingForSeed",
    "Cloning",
    "Attaching",
    "EngineStarting",
    "Unpublished",
    "Unbound",
)
"""Which stage names the condition when pods are in several."""


@dataclass(frozen=True)
class Line:
    pod: str
    stage: Stage
    text: str
    trouble: Trouble | None = None
    attached: bool = False


def rank(place: Place) -> str:
    parts = [
        f"pp{place.pp}" if place.pp else "",
        f"tp{place.tp}",
        f"ep{place.ep}" if place.ep else "",
        f"dp{place.dp}" if place.dp else "",
    ]
    return "-".join(p for p in parts if p)


def line_of(pod: Pod, plan: ArenaPlan | None, world: World) -> Line:
    """The state of one pod."""
    where = f"pod {pod.name}"
    if pod.node is None:
        return Line(pod.name, "Unbound", f"{where}: not bound to a node yet", pod.trouble)
    where = f"pod {pod.name}: rank tp0 on {pod.node}"
    agent = world.agents.get(pod.node)
    if agent is None or not agent.fresh:
        silent = world.missing_agents.get(pod.node, 0.0)
        trouble = pod.trouble
        if silent >= 10:
            trouble = trouble or Trouble(
                "AgentUnavailable",
                f"{where}: the agent of the node does not answer (for {silent // 10 * 10:.0f} s or more); "
                f"look at the flashboot-agent pod on {pod.node}",
            )
        if pod.ready:
            return Line(pod.name, "Ready", f"{where} is Ready, the agent of the node is silent", trouble, attached=True)
        return Line(pod.name, "Unknown", f"{where} waits: the agent of the node does not answer", trouble)
    seen, arena = agent.pod(pod.uid), agent.arena(plan.arena) if plan else None
    trouble = _trouble(where, seen, arena) or pod.trouble
    if seen is None:
        if pod.ready:
            return Line(
                pod.name,
                "Attaching",
                f"{where} is Ready, but without FlashBoot's volume: the agent does not know it",
                trouble,
            )
        return Line(pod.name, "Unpublished", f"{where} waits for its volume", trouble)
    if seen.phase == "attached":
        stage: Stage = "Ready" if pod.ready else "EngineStarting"
        return Line(
            pod.name,
            stage,
            f"{where} attached, {'and Ready' if pod.ready else 'but its engine is not Ready yet'}",
            trouble,
            True,
        )
    if arena is not None and arena.state == "sealed":
        return Line(pod.name, "Attaching", f"{where} has all bytes, its engine has not attached yet", trouble)
    if plan is not None and plan.source is None:
        if plan.seed is None:
            return Line(pod.name, "WaitingForSeed", f"{where} waits: no pod can load the checkpoint yet", trouble)
        if plan.seed.uid == pod.uid:
            return Line(pod.name, "Seeding", f"{where} {_seeding(arena)}", trouble)
        return Line(
            pod.name,
            "WaitingForSeed",
            f"{where} waits for the seed, pod {plan.seed.name} on {plan.seed.node}",
            trouble,
        )
    return Line(pod.name, "Cloning", f"{where} {_cloning(plan, pod.node, arena)}", trouble)


def _seeding(arena: ObservedArena | None) -> str:
    if arena is None:
        return "loads the checkpoint as the seed"
    return f"loads the checkpoint as the seed, arena of {arena.bytes} bytes {arena.state}"


def _cloning(plan: ArenaPlan | None, node: str, arena: ObservedArena | None) -> str:
    parent = (arena.parent if arena else None) or (plan.edges.get(node) if plan else None)
    if arena is None or not arena.bytes:
        return f"starts to clone from {parent}" if parent else "waits for a free peer to clone from"
    percent = arena.watermark * 100 // arena.bytes
    return f"at {percent} % from {parent}" if parent else f"at {percent} %, waits for a free peer to clone from"


def _trouble(where: str, seen: ObservedPod | None, arena: ObservedArena | None) -> Trouble | None:
    for problem in (seen.problem if seen else None, arena.problem if arena and arena.state != "sealed" else None):
        if problem is not None:
            return Trouble(problem.reason, f"{where}: {problem.message}")
    return None
