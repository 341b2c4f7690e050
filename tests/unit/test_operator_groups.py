"""Replicas of several pods: which pod is which, what is applied for them, when they restart, how they count."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from flashboot_agent.core.identity import arena_id
from flashboot_agent.wire.observed_arena import ObservedArena
from flashboot_agent.wire.place import Place
from flashboot_operator.core.budget import budget
from flashboot_operator.core.expected import expected_identity
from flashboot_operator.core.facts import Pod
from flashboot_operator.core.groupset import ordinal_of, service, stateful_set, template_digest
from flashboot_operator.core.membership import Membership, membership_of, selector_of
from flashboot_operator.core.parsing import pod_of
from flashboot_operator.core.plan import Memory, wanted_of
from flashboot_operator.core.replica import plan_replica
from flashboot_operator.core.replicas import with_leaders_hash
from flashboot_operator.core.status import compute_status
from flashboot_operator.core.together import Pauses, all_met, loss_of, note_of
from flashboot_operator.core.workload import TemplateRefused
from tests.unit.operatorkit import HASH, NOW, TEMPLATE, agent, arena, owner, pod, seen, spec, uid, world

META = {"name": "m", "namespace": "ns", "uid": "u-1"}
TWO: dict[str, Any] = {"group": {"size": 2}, "parallelism": {"tensor": 2}}
LWS = "leaderworkerset.sigs.k8s.io"
MADE = {"metadata": {"creationTimestamp": NOW.isoformat()}}
"""A StatefulSet whose pods are still to come."""


# Which pod is which


@pytest.mark.parametrize(
    ("labels", "member"),
    [
        ({}, Membership()),
        ({"flashboot.io/replica": "m-3", "apps.kubernetes.io/pod-index": "1"}, Membership("m-3", 1)),
        ({f"{LWS}/name": "big", f"{LWS}/group-index": "2", f"{LWS}/worker-index": "0"}, Membership("big-2", 0)),
        ({"apps.kubernetes.io/pod-index": "4"}, Membership()),  # of a StatefulSet of the user's, each pod a replica
        ({"flashboot.io/replica": "m-3", "apps.kubernetes.io/pod-index": "-1"}, Membership()),
        ({"flashboot.io/replica": "m-3"}, Membership()),
        ({f"{LWS}/name": "big", f"{LWS}/worker-index": "0"}, Membership()),
    ],
)
def test_a_pods_labels_say_of_which_replica_it_is(labels: dict[str, str], member: Membership) -> None:
    assert membership_of(labels) == member


def test_a_pod_has_its_replica_and_its_engines_restarts() -> None:
    labels = {"flashboot.io/model-replica": "m", "flashboot.io/replica": "m-0", "apps.kubernetes.io/pod-index": "1"}
    statuses = [{"name": "sidecar", "restartCount": 7}, {"name": "engine", "restartCount": 2}]
    raw = {
        "metadata": {
            "uid": "u",
            "name": "m-0-1",
            "namespace": "ns",
            "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"containers": [{"name": "sidecar"}, {"name": "engine"}]},
        "status": {"containerStatuses": statuses},
    }
    made = pod_of(raw)
    assert (made.replica, made.index, made.restarts) == ("m-0", 1, 2)


def test_the_selector_has_one_pod_per_replica() -> None:
    assert selector_of("m", pods_per_replica=1) == "flashboot.io/model-replica=m,flashboot.io/leader=true"
    assert selector_of("m", pods_per_replica=2) == "flashboot.io/model-replica=m,apps.kubernetes.io/pod-index=0"
    assert selector_of("m", pods_per_replica=2, lws=True).endswith(f"{LWS}/worker-index=0")


# What is applied


def test_a_group_is_a_stateful_set_whose_pods_know_their_number_and_where_they_meet() -> None:
    made = stateful_set(META, spec(**TWO), "m-1")
    assert (made["metadata"]["name"], made["spec"]["replicas"], made["spec"]["serviceName"]) == ("m-1", 2, "m-1")
    assert made["spec"]["podManagementPolicy"] == "Parallel"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    template = made["spec"]["template"]
    assert template["metadata"]["labels"] == {"flashboot.io/model-replica": "m", "flashboot.io/replica": "m-1"}
    assert template["metadata"]["annotations"]["flashboot.io/engine-hash"] == HASH
    engine = template["spec"]["containers"][0]
    args = engine["args"]
    assert args[args.index("--nnodes") + 1] == "2"
    assert args[args.index("--node-rank") + 1] == "$(FLASHBOOT_POD_INDEX)"
    assert args[args.index("--dist-init-addr") + 1] == "m-1-0.m-1.ns.svc:20000"
    paths = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in engine["env"] if "valueFrom" in e}
    assert paths == {
        "FLASHBOOT_POD_INDEX": "metadata.labels['apps.kubernetes.io/pod-index']",
        "SGLANG_HOST_IP": "status.podIP",
    }
    assert made["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_groups_differ_in_their_names_alone_and_share_what_makes_an_arena() -> None:
    first, second = stateful_set(META, spec(**TWO), "m-0"), stateful_set(META, spec(**TWO), "m-1")
    assert first["metadata"]["annotations"] == second["metadata"]["annotations"]
    named = str(second).replace("m-1", "m-0")
    assert named == str(first)
    assert template_digest(META, spec(**TWO)) == template_digest(META, spec(**TWO, replicas=9))
    other = copy.deepcopy(TEMPLATE)
    other["metadata"] = {"labels": {"app": "x"}}
    assert template_digest(META, spec(**TWO)) != template_digest(META, spec(**TWO, template=other))


def test_the_service_gives_names_to_pods_that_are_not_ready_and_goes_with_the_set() -> None:
    made = service(META, "m-1", "set-uid")
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["publishNotReadyAddresses"] is True
    assert made["spec"]["selector"] == {"flashboot.io/replica": "m-1"}
    assert made["metadata"]["ownerReferences"][0]["uid"] == "set-uid"


@pytest.mark.parametrize("word", ["--nnodes", "--node-rank=1", "--dist-init-addr"])
@pytest.mark.parametrize("size", [1, 2])
def test_arguments_that_flashboot_sets_are_refused(word: str, size: int) -> None:
    template = {"spec": {"containers": [{"name": "engine", "args": ["serve", word, "2"]}]}}
    with pytest.raises(TemplateRefused, match=rf"spec\.group\.size how many there are \(now {size}\)"):
        template_digest(META, spec(**TWO | {"group": {"size": size}}, template=template))


@pytest.mark.parametrize("name", ["a.b", "a" * 41, "1a", "a-"])
def test_a_name_that_is_no_host_name_is_refused(name: str) -> None:
    with pytest.raises(TemplateRefused, match=r"metadata\.name"):
        template_digest(META | {"name": name}, spec(**TWO))


def test_ordinals() -> None:
    assert [ordinal_of("m", g) for g in ("m-0", "m-12", "m-01", "m-x", "m", "n-0", "m-0-1", "m--1")] == [
        *(0, 12),
        *([None] * 6),
    ]


@pytest.mark.parametrize(("tensor", "pipeline", "size"), [(4, 1, 3), (3, 2, 4), (2, 3, 2), (1, 1, 2)])
def test_ranks_that_cannot_be_divided_are_refused(tensor: int, pipeline: int, size: int) -> None:
    with pytest.raises(ValidationError, match="divided evenly"):
        spec(parallelism={"tensor": tensor, "pipeline": pipeline}, group={"size": size})


def test_ranks_are_limited_per_pod() -> None:
    spec(parallelism={"tensor": 128}, group={"size": 2})
    with pytest.raises(ValidationError, match="more than 64 ranks per pod"):
        spec(parallelism={"tensor": 256}, group={"size": 2})


def test_an_eviction_may_take_one_replica_at_a_time() -> None:
    assert budget(META, spec(replicas=4))["spec"]["maxUnavailable"] == 1
    assert budget(META, spec(replicas=4, rollout={"maxUnavailable": 3}))["spec"]["maxUnavailable"] == 3
    for replicas, least in ((0, 0), (1, 0), (4, 6)):
        made = budget(META, spec(**TWO, replicas=replicas))["spec"]
        assert (made["minAvailable"], made["unhealthyPodEvictionPolicy"]) == (least, "AlwaysAllow")
    assert budget(META, spec(**TWO, replicas=4, rollout={"maxUnavailable": 2}))["spec"]["minAvailable"] == 4


# Together or not at all


def group(name: str = "m-0", **more: Any) -> list[Pod]:
    return [pod(f"{name}-{i}", f"n{i}", replica=name, index=i, **more) for i in (0, 1)]


PODS = group()
NOTE = note_of(PODS)


def test_a_group_has_met_when_every_rank_has_its_weights() -> None:
    def agents(second: str) -> Any:
        made = [agent("n0", pods=[seen("m-0-0", tp0="attached")]), agent("n1", pods=[seen("m-0-1", tp1=second)])]
        return {a.node: a for a in made}

    assert not all_met(owner(**TWO), PODS, agents("coming"))
    assert all_met(owner(**TWO), PODS, agents("attached"))
    assert all_met(owner(**TWO), PODS, agents("seeding"))
    assert not all_met(owner(**TWO), PODS[:1], agents("attached")), "half a group"
    assert all_met(owner(**TWO), group(ready=True), {}), "agents that are away change nothing for who serves"
    silent = {node: replace(a, fresh=False) for node, a in agents("attached").items()}
    assert not all_met(owner(**TWO), PODS, silent)


def test_an_engine_that_ended_takes_the_others_with_it() -> None:
    assert loss_of("", PODS) is None
    assert loss_of(NOTE, PODS) is None
    loss = loss_of(NOTE, [PODS[0], replace(PODS[1], restarts=1)])
    assert loss is not None
    assert ([p.name for p in loss.rest], loss.why) == (["m-0-0"], "the engine of pod m-0-1 ended")
    loss = loss_of(NOTE, [PODS[0], replace(PODS[1], going=True)])
    assert loss is not None
    assert ([p.name for p in loss.rest], loss.why) == (["m-0-0"], "1 of its pods is gone")
    again = replace(PODS[1], uid=uid("new"))
    loss = loss_of(NOTE, [PODS[0], again])
    assert loss is not None
    assert [p.name for p in loss.rest] == ["m-0-0"], "who came since is left alone"


def test_one_loss_is_one_restart() -> None:
    restarted = replace(PODS[1], restarts=1)
    assert loss_of(NOTE, [replace(PODS[0], going=True), restarted]) is None, "it is on its way out already"
    anew = replace(PODS[0], uid=uid("anew"))
    assert loss_of(NOTE, [anew, restarted]) is None, "nobody is left of that meeting"
    assert loss_of(note_of([anew, restarted]), [anew, restarted]) is None
    assert loss_of(NOTE, [replace(p, restarts=1) for p in PODS]) is None, "all began anew by themselves"


def test_pauses_grow_and_end() -> None:
    pauses, now, waits = Pauses(), 0.0, []
    assert pauses.over("g", now)
    for _ in range(9):
        began = now
        while not pauses.over("g", now):
            now += 1
        waits.append(now - began)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert pauses.over("other", now)
    assert not pauses.over("g", now + 299)
    assert pauses.over("g", now + 600), "it held for long"
    assert pauses.over("g", now + 605), "and begins with the shortest pause"


# How they count


def status(pods: list[Pod], **more: Any) -> dict[str, Any]:
    agents = [agent(p.node or "", pods=[seen(p.name, "attached")]) for p in pods]
    made = compute_status(
        owner(**TWO, replicas=2), world(pods, agents, **more), [], generation=1, before={}, refused=None
    )
    return made.model_dump(by_alias=True, exclude_none=True, mode="json")


def test_a_replica_is_ready_when_all_of_its_pods_are() -> None:
    first = group("m-0", ready=True)
    second = [pod("m-1-0", "n2", replica="m-1", index=0, ready=True), pod("m-1-1", "n3", replica="m-1", index=1)]
    made = status(first + second)
    assert (made["replicas"], made["readyReplicas"], made["updatedReplicas"]) == (2, 1, 2)
    assert status(first + second[:1])["readyReplicas"] == 1, "a pod of it is missing"
    assert status(first + [replace(p, hash="other") for p in second])["updatedReplicas"] == 1
    assert status(first, sets={"m-0": MADE, "m-1": MADE})["replicas"] == 2, "its pods are still to come"


def test_pods_that_have_no_place_in_a_replica_are_a_trouble() -> None:
    made = status([pod("lost", "n1", ready=True)])
    [degraded] = [c for c in made["conditions"] if c["type"] == "Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "GroupDiffers")
    assert "no labels that say of which replica it is" in degraded["message"]
    made = status([*group(ready=True), pod("m-0-2", "n9", replica="m-0", index=2, ready=True)])
    [degraded] = [c for c in made["conditions"] if c["type"] == "Degraded"]
    assert "it is number 2 of replica m-0, and spec.group.size is 2" in degraded["message"]
    assert made["readyReplicas"] == 0


# LeaderWorkerSet


def lws_pod(index: int, group_index: int = 0) -> dict[str, Any]:
    """As its controller makes them: by its public conventions, never tried with the controller itself."""
    labels = {
        "flashboot.io/model-replica": "m",
        f"{LWS}/name": "big",
        f"{LWS}/group-index": str(group_index),
        f"{LWS}/worker-index": str(index),
    }
    env = [
        {"name": "LWS_LEADER_ADDRESS", "value": f"big-{group_index}.big.ns"},
        {"name": "LWS_GROUP_SIZE", "value": "2"},
        {"name": "LWS_WORKER_INDEX", "value": str(index)},
        {"name": "MINE", "value": "x"},
    ]
    return {
        "metadata": {
            "uid": uid(f"big-{group_index}-{index}"),
            "name": f"big-{group_index}-{index}",
            "namespace": "ns",
            "labels": labels,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"containers": [{"name": "engine", "image": "x", "env": env}], "nodeName": f"n{group_index}{index}"},
    }


def test_pods_of_a_leader_worker_set_are_groups_of_one_kind() -> None:
    pods = [pod_of(lws_pod(index, number)) for number in (0, 1) for index in (0, 1)]
    assert [(p.replica, p.index) for p in pods] == [("big-0", 0), ("big-0", 1), ("big-1", 0), ("big-1", 1)]
    assert len({p.hash for p in pods}) == 1, "whose number and whose leader it is changes no arena"
    adopting = owner(**TWO, replicas=None, template=None)
    there = world(pods, [agent(p.node or "", pods=[seen(p.name)]) for p in pods])
    decided = plan_replica(adopting, there, Memory())
    assert {str(plan.place): [p.name for p in plan.pods] for plan in decided} == {
        "tp0": ["big-0-0", "big-1-0"],
        "tp1": ["big-0-1", "big-1-1"],
    }
    assert {str(plan.place): plan.seed.name for plan in decided if plan.seed} == {"tp0": "big-0-0", "tp1": "big-0-1"}
    made = compute_status(adopting, there, decided, generation=1, before={}, refused=None)
    assert (made.replicas, made.selector) == (2, f"flashboot.io/model-replica=m,{LWS}/worker-index=0")


def test_workers_with_a_template_of_their_own_are_of_their_leaders_kind() -> None:
    raw = lws_pod(1)
    raw["spec"]["containers"][0]["image"] = "other"
    leader, worker = with_leaders_hash([pod_of(lws_pod(0)), pod_of(raw)])
    assert worker.hash == leader.hash


# Arenas of a group that restarts


def test_arenas_stay_where_the_pods_of_a_restarting_group_were() -> None:
    def sealed(place: Place) -> ObservedArena:
        made = owner(**TWO)
        expected = expected_identity(
            made.spec, template_hash=made.template_hash or "", gpu_product="cpu", architecture="amd64"
        )
        return arena("sealed", name=arena_id(made.uid, expected, place), expected_identity=expected, place=place)

    agents = [agent(f"n{group}{i}", arenas=[sealed(Place(tp=i))]) for group in (0, 1) for i in (0, 1)]
    first = [pod(f"m-0-{i}", f"n0{i}", replica="m-0", index=i, ready=True) for i in (0, 1)]

    def told(sets: list[str]) -> dict[str, str]:
        decided = plan_replica(owner(**TWO, replicas=2), world(first, agents, sets={n: {} for n in sets}), Memory())
        return {node: wanted[0].role for node, wanted in wanted_of(decided).items()}

    assert told(["m-0", "m-1"]) == {"n00": "hold", "n01": "hold", "n10": "hold", "n11": "hold"}
    assert told(["m-0"]) == {"n00": "hold", "n01": "hold"}, "nobody comes back"


# The memory-sampling rule


def elsewhere(second: str, **size: int) -> dict[str, dict[str, list[str]]]:
    """Node → what its pods wait for, of a group that clones; `second`: the state of its second rank's arena."""
    expected = expected_identity(
        spec(**TWO), template_hash=owner(**TWO).template_hash or "", gpu_product="cpu", architecture="amd64"
    )

    def held(state: str, tp: int, **more: Any) -> ObservedArena:
        place = Place(tp=tp)
        name = arena_id(owner(**TWO).uid, expected, place)
        return arena(state, name=name, expected_identity=expected, place=place, **more)

    source = agent("s", arenas=[held("sealed", 0), held("sealed", 1)])
    first = agent("n0", pods=[seen("m-0-0")], arenas=[held("filling", 0)])
    other = agent("n1", pods=[seen("m-0-1", tp1="published")], arenas=[held(second, 1, **size)] if second else [])
    decided = plan_replica(owner(**TWO), world(PODS, [source, first, other]), Memory())
    return {node: {k: v for w in wanted for k, v in w.elsewhere.items()} for node, wanted in wanted_of(decided).items()}


def test_pods_are_told_which_ranks_of_their_replica_have_no_memory_elsewhere() -> None:
    waits = {"s": {}, "n0": {uid("m-0-0"): ["rank tp1 of pod m-0-1 on n1"]}, "n1": {}}
    assert elsewhere("") == waits
    assert elsewhere("allocated", bytes=0) == waits, "its size is not known yet"
    assert elsewhere("allocated") == elsewhere("sealed") == {"s": {}, "n0": {}, "n1": {}}


def test_a_pod_that_is_not_there_yet_is_waited_for() -> None:
    half = [PODS[0]]
    expected = expected_identity(
        spec(**TWO), template_hash=owner(**TWO).template_hash or "", gpu_product="cpu", architecture="amd64"
    )
    arenas = [
        arena("sealed", name=arena_id(owner(**TWO).uid, expected, p), expected_identity=expected, place=p)
        for p in (Place(tp=0), Place(tp=1))
    ]
    there = world(half, [agent("s", arenas=arenas), agent("n0", pods=[seen("m-0-0")])])
    told = wanted_of(plan_replica(owner(**TWO), there, Memory()))
    assert told["n0"][0].elsewhere == {uid("m-0-0"): ["rank tp1 of replica m-0, which has no pod on a node yet"]}


def test_a_domain_holds_as_many_replicas_as_its_rarest_rank_has_nodes() -> None:
    expected = expected_identity(
        spec(**TWO), template_hash=owner(**TWO).template_hash or "", gpu_product="cpu", architecture="amd64"
    )

    def holder(node: str, tp: int) -> Any:
        place = Place(tp=tp)
        name = arena_id(owner(**TWO).uid, expected, place)
        return agent(node, arenas=[arena("sealed", name=name, expected_identity=expected, place=place)])

    there = world([], [holder("n0", 0), holder("n1", 1), holder("n2", 0)])
    decided = plan_replica(owner(**TWO), there, Memory())
    made = compute_status(owner(**TWO), there, decided, generation=1, before={}, refused=None)
    assert [(d.name, d.resident_replicas) for d in made.domains or []] == [("default", 1)]
