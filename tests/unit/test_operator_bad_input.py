"""What bad input gets: each row of the list ends in a condition with a reason and a next step, and in an Event."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from flashboot_agent.wire.problem import Problem
from flashboot_operator.agents.client import AgentRefused
from flashboot_operator.agents.skew import Skew
from flashboot_operator.api.status import Condition
from flashboot_operator.core import contest
from flashboot_operator.core.claims import divide
from flashboot_operator.core.contest import Contest, Hand, hands_of
from flashboot_operator.core.events import happened, transitions
from flashboot_operator.core.facts import Node, Pod, Trouble, World
from flashboot_operator.core.note import Note
from flashboot_operator.core.parsing import node_of, pod_of
from flashboot_operator.core.plan import Memory, Owner
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.status import compute_status
from flashboot_operator.core.workload import TemplateRefused, pod_template
from flashboot_operator.reconcile.refusal import refusal
from tests.unit.operatorkit import NOW, TEMPLATE, agent, owner, pod, spec, world

Said = tuple[list[Condition], list[Note]]
Raw = dict[str, Any]


def look(facts: World, who: Owner | None = None, refused: Trouble | None = None) -> Said:
    who = who or owner()
    plans = plan_replica(who, facts, Memory())
    status = compute_status(who, facts, plans, generation=1, before={}, refused=refused)
    said = status.conditions or []
    return said, [*happened(who, facts, plans), *transitions(said, [])]


def raw(**status: Any) -> Raw:
    return {
        "metadata": {"name": "m-x-1", "namespace": "ns", "uid": "0" * 8, "creationTimestamp": "2026-03-01T11:59:00Z"},
        "spec": {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": status,
    }


def an_image_that_cannot_be_pulled() -> Said:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "no/such"'}
    made = raw(containerStatuses=[{"name": "engine", "state": {"waiting": waiting}}])
    made["spec"]["nodeName"] = "n1"
    return look(world([pod_of(made)], [agent("n1")]))


def a_template_that_the_api_server_rejects() -> Said:
    return look(world([], []), refused=Trouble("TemplateRejected", "spec.template…: Unsupported value; correct it"))


def a_quota_exceeded() -> Said:
    failure = {"type": "ReplicaFailure", "status": "True", "message": 'pods "m-x-1" is forbidden: exceeded quota: q'}
    return look(world([], [], deployment={"metadata": {"name": "m"}, "status": {"conditions": [failure]}}))


def a_quota_that_keeps_the_pods_of_a_group_away() -> Said:
    made = {"metadata": {"creationTimestamp": "2026-03-01T11:59:00Z"}}
    return look(world([], [], sets={"m-0": made}), owner(group={"size": 2}, parallelism={"tensor": 2}))


def unscheduled(gpus_of_nodes: int) -> Said:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes available"}
    node = node_of({"metadata": {"name": "n1"}, "status": {"capacity": {"nvidia.com/gpu": str(gpus_of_nodes)}}})
    return look(world([pod_of(raw(conditions=[scheduled]))], [], nodes={"n1": node}))


def more_ranks_than_the_template_has_devices() -> Said:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}
    who = owner(template=template, parallelism={"tensor": 8})
    with pytest.raises(TemplateRefused) as caught:
        pod_template("m", who.spec)
    return look(world([], []), who, Trouble(caught.value.reason, str(caught.value)))


def claimed(stranger: Pod, who: Owner | None = None) -> Said:
    who = who or owner()
    mine, strays = divide(
        who.name, [pod("m-x-1", "n1", made_by="ReplicaSet m-x"), stranger], adopts=who.spec.template is None
    )
    assert [p.name for p in mine] == ["m-x-1"]
    return look(world(list(mine), [agent("n1")], strays=strays), who)


def an_agent_of_another_version() -> Said:
    skewed = {"n1": "the agent, version 0.9.0, speaks protocol 2, this operator 1"}
    return look(World({"n1": Node("n1")}, (pod("m-x-1", "n1"),), {}, NOW, missing_agents={"n1": 1.0}, skewed=skewed))


def a_crd_older_than_the_operator() -> Said:
    trouble = Trouble("CustomResourceOutdated", "the CRD is older …: apply the CRDs of this version first")
    status, _, notes = refusal(("ns", "m"), {"metadata": {"generation": 1, "uid": "u"}}, trouble)
    return [Condition.model_validate(c) for c in status["conditions"]], notes


def a_fight_over_replicas() -> Said:
    hpa, manifest = Hand("kube-controller-manager", scales=True), Hand("argocd", scales=False)
    met = Contest()
    for turn in range(contest.TURNS + 1):
        met = contest.seen(met, frozenset({hpa if turn % 2 else manifest}), NOW - timedelta(seconds=100 - turn))
    return look(world([], [], contested=contest.trouble(met, NOW)))


@dataclass(frozen=True)
class Row:
    bad: Callable[[], Said]
    reason: str
    names: str
    """Of what the message has to speak."""
    step: str
    """What it has to tell the reader to do."""
    stalled: bool = False


ROWS = [
    Row(an_image_that_cannot_be_pulled, "ImagePullFailed", "no/such", "correct the image's name"),
    Row(a_template_that_the_api_server_rejects, "TemplateRejected", "spec.template", "correct", True),
    Row(a_quota_exceeded, "QuotaExceeded", "exceeded quota: q", "raise the ResourceQuota"),
    Row(a_quota_that_keeps_the_pods_of_a_group_away, "PodCreationFailed", "m-0 has 0 of 2 pods", "kubectl describe"),
    Row(lambda: unscheduled(8), "PodUnschedulable", "0/4 nodes", "add a node that fits"),
    Row(lambda: unscheduled(4), "MoreRanksThanDevices", "asks for 8 nvidia.com/gpu", "spread a replica"),
    Row(more_ranks_than_the_template_has_devices, "MoreRanksThanDevices", "makes 8 ranks", "raise the limit", True),
    Row(lambda: claimed(pod("p", "n2", volume_of="other")), "PodClaimedTwice", "volume says other", "Put the label"),
    Row(lambda: claimed(pod("p", "n2", made_by="ReplicaSet web-5d")), "PodClaimedTwice", "ReplicaSet web-5d", "Take"),
    Row(an_agent_of_another_version, "AgentVersionUnsupported", "protocol 2", "install one version"),
    Row(a_crd_older_than_the_operator, "CustomResourceOutdated", "older", "apply the CRDs", True),
    Row(a_fight_over_replicas, "ReplicasContested", "argocd", "leave spec.replicas out of the manifest"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.reason}-{row.names}")
def test_it_ends_in_a_condition_with_a_next_step_and_an_event(row: Row) -> None:
    conditions, notes = row.bad()
    said = {c.type: c for c in conditions}
    assert (said["Degraded"].status, said["Degraded"].reason) == ("True", row.reason)
    assert row.names in said["Degraded"].message
    assert row.step in said["Degraded"].message
    assert ("Stalled" in said) == row.stalled
    warnings = {note.reason: note for note in notes if note.kind == "Warning"}
    assert warnings[row.reason].message == said["Degraded"].message


def test_a_fault_that_is_not_there_is_not_told() -> None:
    serves = pod("m-x-1", "n1", made_by="ReplicaSet m-x", volume_of="m")
    assert divide("m", [serves, pod("m-0-0", "n1", made_by="StatefulSet m-0")], adopts=False)[1] == ()
    assert divide("m", [replace(serves, made_by="ReplicaSet web-5d")], adopts=True)[1] == ()
    assert divide("m", [replace(serves, volume_of="other", going=True)], adopts=True) == ((), ())
    for spare in ({"limits": {"nvidia.com/gpu": "8"}}, {}, {"limits": {"nvidia.com/gpu": "8", "cpu": "1"}}):
        template = copy.deepcopy(TEMPLATE)
        template["spec"]["containers"][0]["resources"] = spare
        pod_template("m", spec(template=template, parallelism={"tensor": 8}))


def test_scaling_by_hand_and_applying_later_is_no_fight() -> None:
    manifest, person = Hand("kubectl-client-side-apply", scales=False), Hand("kubectl", scales=True)
    met = Contest()
    for hand in (manifest, person, manifest):
        met = contest.seen(met, frozenset({hand}), NOW)
    assert contest.trouble(met, NOW) is None


def test_a_fight_that_has_ended_is_forgotten() -> None:
    turns = (NOW - contest.WINDOW,) * contest.TURNS
    assert contest.trouble(Contest(turns=turns), NOW) is not None
    assert contest.trouble(Contest(turns=turns), NOW + timedelta(seconds=1)) is None


def test_hands_are_read_from_managed_fields() -> None:
    fields: Raw = {"f:spec": {"f:replicas": {}}}
    managed = [
        {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:model": {}}}},
        {"manager": "kube-controller-manager", "operation": "Update", "subresource": "scale", "fieldsV1": fields},
        {"manager": "us", "operation": "Update", "fieldsV1": fields},
        {"manager": "other", "operation": "Update", "fieldsV1": {"f:metadata": {}}},
    ]
    assert hands_of(managed, own="us") == {Hand("kubectl", False), Hand("kube-controller-manager", True)}


def test_an_agent_that_does_not_understand_its_orders_is_of_another_version() -> None:
    skew, seen = Skew(), agent("n1").observed
    skew.refused(AgentRefused(Problem(reason="StaleEpoch", message="seen 4")), seen)
    assert str(skew) == ""
    skew.refused(AgentRefused(Problem(reason="BadRequest", message="arenas.0.shape: Extra inputs")), seen)
    skew.heard()
    assert str(skew) == "the agent, version t, does not understand this operator: arenas.0.shape: Extra inputs"
    facts = world([pod("m-x-1", "n1")], [agent("n1")], skewed={"n1": str(skew)})
    assert {c.type: c.reason for c in look(facts)[0]}["Degraded"] == "AgentVersionUnsupported"
    skew.obeyed()
    assert str(skew) == ""


@pytest.mark.parametrize("said", ["x" * 5000, "foo bar", ""])
def test_an_adopted_pod_may_carry_anything_where_our_hash_goes(said: str) -> None:
    made = raw() | {"spec": raw()["spec"] | {"nodeName": "n1"}}
    plain = pod_of(made)
    made["metadata"]["annotations"] = {"flashboot.io/engine-hash": said}
    assert pod_of(made) == plain
    look(world([pod_of(made)], [agent("n1")]), owner(template=None, replicas=None))


def test_numbers_that_are_none_break_nothing() -> None:
    """`int` refuses what `isdigit` takes, and numbers of thousands of digits."""
    for odd in ("\u00b2", "9" * 5000):
        template = copy.deepcopy(TEMPLATE)
        template["spec"]["containers"][0] |= {"args": ["--port", odd], "resources": {"limits": {"nvidia.com/gpu": odd}}}
        made = pod_template("m", spec(template=template))
        assert made["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] == 30000
