"""Status, conditions and Events, and that docs/reference/conditions.md lists every reason."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from flashboot_agent.wire.problem import Problem
from flashboot_operator.core.events import SEALED, happened, transitions
from flashboot_operator.core.facts import Trouble, World
from flashboot_operator.core.parsing import IMAGE_STEP, pod_of
from flashboot_operator.core.plan import Memory, Owner
from flashboot_operator.core.reasons import ConditionReason, EventReason, NoSourceReason, Wrong
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from tests.unit.operatorkit import NOW, SIZE, agent, arena, owner, pod, seen, world

REPO = Path(__file__).resolve().parents[2]


def look(owner_: Owner, world_: World, before: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    plans = plan_replica(owner_, world_, Memory())
    made = compute_status(owner_, world_, plans, generation=3, before=before or {}, refused=more.get("refused"))
    return made.model_dump(by_alias=True, exclude_none=True, mode="json")


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def serving(count: int) -> World:
    pods = [pod(f"p{i}", f"n{i}", at=i, ready=True, ready_at=NOW) for i in range(count)]
    agents = [agent(f"n{i}", pods=[seen(f"p{i}", "attached")], arenas=[arena(transport="tcp")]) for i in range(count)]
    return world(pods, agents)


def test_all_is_well() -> None:
    status = look(owner(replicas=2), serving(2))
    assert conditions(status) == {
        "Available": ("True", "MinimumReplicasReady"),
        "Ready": ("True", "AllReplicasReady"),
        "SourceAvailable": ("True", "ServingAndSealed"),
        "Degraded": ("False", "AsExpected"),
    }
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (2, 2, 2)
    assert status["lastClone"] | {"completedAt": ""} == {
        "replicas": 2,
        "path": "tcp",
        "bytes": SIZE,
        "cloneMilliseconds": 30000,
        "apiReadyMilliseconds": 10000,
        "completedAt": "",
    }


def test_a_transition_time_moves_only_with_the_status() -> None:
    first = look(owner(replicas=2), serving(2))
    later = World(**{**serving(2).__dict__, "now": NOW + timedelta(minutes=1)})
    assert look(owner(replicas=2), later, first)["conditions"] == first["conditions"]
    worse = look(owner(replicas=3), later, first)
    moved = {c["type"]: c["lastTransitionTime"] for c in worse["conditions"]}
    assert moved["Ready"] != moved["Degraded"]


def test_scaled_to_zero_is_ready() -> None:
    status = look(owner(replicas=0), world([], []))
    assert conditions(status)["Ready"] == ("True", "ScaledToZero")
    assert status["domains"] == []


def test_a_running_clone_is_described() -> None:
    there = serving(1)
    slow = agent("n9", pods=[seen("p9")], arenas=[arena("filling", watermark=610, parent="n0")])
    both = world([*there.pods, pod("p9", "n9", at=9)], [*there.agents.values(), slow])
    status = look(owner(replicas=2), both)
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["reason"], ready["message"]) == ("Cloning", "pod p9: rank tp0 on n9 at 61 % from n0")
    assert conditions(status)["Reconciling"] == ("True", "Progressing")


def test_a_load_from_an_image_is_described() -> None:
    loading = agent("n0", pods=[seen("p0")], arenas=[arena("filling", watermark=610, way="load")])
    status = look(owner(replicas=1), world([pod("p0", "n0")], [loading]))
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    text = "pod p0: rank tp0 on n0 loads from the image on this node, at 61 %"
    assert (ready["reason"], ready["message"]) == ("LoadingImage", text)


def test_the_operator_away_from_an_agent_makes_nobody_unready() -> None:
    there = serving(2)
    mute = World(**{**there.__dict__, "agents": {}, "missing_agents": {"n0": 12.0, "n1": 12.0}})
    status = look(owner(replicas=2), mute)
    assert status["readyReplicas"] == 2
    assert conditions(status)["Ready"][0] == "True"
    assert conditions(status)["Degraded"] == ("True", "AgentUnavailable")


def test_a_problem_names_pod_node_and_file() -> None:
    problem = Problem(reason="CheckpointTruncated", message="/m/a.safetensors ends at byte 5 of 10")
    status = look(owner(), world([pod("p", "n")], [agent("n", pods=[seen("p", problem=problem)])]))
    degraded = next(c for c in status["conditions"] if c["type"] == "Degraded")
    assert degraded["reason"] == "CheckpointTruncated"
    assert degraded["message"] == "pod p: rank tp0 on n: /m/a.safetensors ends at byte 5 of 10"
    assert conditions(status)["Ready"] == ("False", "CheckpointTruncated")


def test_a_refused_template_stalls() -> None:
    status = look(owner(), world([], []), refused=Trouble("TemplateRejected", "no"))
    assert conditions(status)["Stalled"] == ("True", "TemplateRejected")
    assert "Reconciling" not in conditions(status)


def test_an_exceeded_quota_is_told() -> None:
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "pods x: exceeded quota: q",
    }
    status = look(owner(), world([], [], deployment={"metadata": {"name": "m"}, "status": {"conditions": [failure]}}))
    assert conditions(status)["Degraded"] == ("True", "QuotaExceeded")


def test_the_last_clone_stays_when_replicas_go() -> None:
    first = look(owner(replicas=3), serving(3))
    assert first["lastClone"]["replicas"] == 3
    assert look(owner(replicas=1), serving(1), first)["lastClone"] == first["lastClone"]


def test_what_kubelet_says_of_a_pod() -> None:
    raw: dict[str, Any] = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "containers": [{"name": "engine"}]},
        "status": {
            "containerStatuses": [
                {"name": "engine", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such"}}}
            ]
        },
    }
    trouble = pod_of(raw).trouble
    assert trouble == Trouble("ImagePullFailed", f"pod p: container engine on n: ErrImagePull: no such; {IMAGE_STEP}")


def test_events_have_stable_names_and_old_news_is_not_told() -> None:
    here, there = owner(replicas=2), serving(2)
    plans = plan_replica(here, there, Memory())
    status = compute_status(here, there, plans, generation=1, before={}, refused=None)
    notes = [*happened(here, there, plans), *transitions(status.conditions or [], [])]
    assert {n.reason for n in notes} == {"SourceElected", "CloneSealed", "ReplicasReady"}
    assert len({n.name(here) for n in notes}) == len(notes)
    again = [*happened(here, there, plans), *transitions(status.conditions or [], [])]
    assert [n.name(here) for n in again] == [n.name(here) for n in notes]
    later = World(**{**there.__dict__, "now": NOW + timedelta(hours=1)})
    assert "CloneSealed" not in {n.reason for n in happened(here, later, plans)}


def documented(heading: str) -> set[str]:
    """Reasons in the table below a heading of the reference."""
    text = (REPO / "docs/reference/conditions.md").read_text()
    return set(re.findall(r"^\| `(\w+)` \|", text.split(f"\n## {heading}")[1].split("\n## ")[0], re.MULTILINE))


def members(of: object) -> set[str]:
    """Of a union of Literals."""
    return {name for part in get_args(of) for name in (members(part) or {part})}


ANSWERS = {"BadRequest", "StaleEpoch", "WrongNode", "UnknownArena", "NotReady", "TornFrame"}
"""What an agent answers to the operator, and no trouble of a rank."""
DELTAS = {"DeltaDamaged", "DeltaUntrusted", "DeltaBaseMismatch", "DeltaUnreachable", "DiskFull"}
INTERNAL = ANSWERS | DELTAS | {"ArenaImmutable", "ArenaUpdating", "ArenaInUse"}
"""And what so far only `flashboot delta` and agents that are ordered to update say; docs/sparse-sync.md has them."""


def test_the_reference_lists_exactly_the_reasons_that_exist() -> None:
    """The type checker holds that no other reason is said."""
    wrong = members(Wrong) - INTERNAL
    assert documented("What is wrong") == wrong | {"ProgressDeadlineExceeded"}
    assert documented("When all is well") == members(ConditionReason) - wrong - INTERNAL - {
        "Ready",
        "ProgressDeadlineExceeded",
    }
    assert documented("Who feeds whom") == members(NoSourceReason)
    assert documented("Events") == members(EventReason)


def test_the_source_tells_exactly_the_events_that_exist() -> None:
    files = ("core/events.py", "core/source_events.py", "reconcile/groups.py")
    source = "".join((REPO / "operator/flashboot_operator" / each).read_text() for each in files)
    said = set(re.findall(r'(?:Note|_of)\(\s*(?:now, )?"\w+",\s*"(\w+)"', source)) | set(SEALED.values())
    assert said == members(EventReason)
