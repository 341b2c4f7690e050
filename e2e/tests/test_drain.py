"""A node is drained while more replicas are asked for, and an agent is restarted: no engine loads anything again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flashboot_agent.wire.observed import Observed
from kit import light
from kit.agents import SYSTEM, agents
from kit.eventually import NotYet, eventually
from kit.world import NAMESPACE, Mrep, World, restarts

STORY = True
NAME = "drain"


@pytest.fixture(scope="module")
def mrep(world: World) -> Iterator[Mrep]:
    light.prepare(world)
    document = light.manifest(NAME, 2)
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"app": NAME}},
    }
    document["spec"]["template"]["spec"]["topologySpreadConstraints"] = [spread]
    made = Mrep.create(world, document)
    yield made
    for node in world.nodes():
        world.kubectl("uncordon", node)
    made.delete()


def source(mrep: Mrep) -> str:
    return str(mrep.get()["status"]["domains"][0]["sourceNode"])


def told(mrep: Mrep) -> list[str]:
    """Reasons of all Events of the object."""
    fields = f"regarding.name={mrep.name},regarding.kind=ModelReplica"
    return [e["reason"] for e in mrep.world.api.items("events", NAMESPACE, fields=fields)]


@pytest.mark.timeout(240)
def test_the_source_of_a_drained_node_is_replaced_before_its_pods_go(mrep: Mrep) -> None:
    world = mrep.world
    mrep.wait_ready(2, light.SECONDS)
    drained = source(mrep)
    other = next(pod["spec"]["nodeName"] for pod in mrep.pods() if pod["spec"]["nodeName"] != drained)
    world.kubectl("cordon", drained)

    def moved() -> None:
        if source(mrep) != other:
            raise NotYet(f"the source is {source(mrep)}")

    eventually(moved, f"{other} to become the source instead of {drained}", 20)
    assert any(pod["spec"]["nodeName"] == drained for pod in mrep.pods()), "its pod is there still"
    mrep.scale(3)
    world.kubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", seconds=120)
    mrep.wait_ready(3, light.SECONDS)
    occupied = {pod["spec"]["nodeName"] for pod in mrep.pods()}
    assert drained not in occupied
    assert len(occupied) == 3
    mrep.wait_arenas(occupied)
    for node in occupied - {other}:
        came_from = {path.node for path in mrep.arenas()[node].paths}
        assert drained not in came_from, f"{node} cloned from {came_from}"
    assert told(mrep).count("SeedSealed") == 1, "the first replica loaded, and nobody after it"
    assert len(light.sums(world, [pod["metadata"]["name"] for pod in mrep.pods()])) == 1


@pytest.mark.timeout(120)
def test_an_agent_that_comes_back_holds_what_it_held(mrep: Mrep) -> None:
    world, node = mrep.world, source(mrep)
    before, arena = world.observed()[node], mrep.arenas()[node]
    killed = agents(world.api)[node]
    world.kubectl("delete", "pod", killed.pod, "-n", SYSTEM, "--grace-period=0", "--force", "--wait=true")

    def holds(seen: dict[str, Observed]) -> None:
        after = seen.get(node)
        if after is None or after.instance == before.instance:
            raise NotYet("the agent is not back")
        held = mrep.arenas({node: after}).get(node)
        if held is None or (held.state, held.created_at) != ("sealed", arena.created_at):
            raise NotYet(f"its arena is {held and held.state}")
        if "AgentRestarted" not in told(mrep):
            raise NotYet(f"the Events are {told(mrep)}")

    world.eventually_observed(f"the agent of {node} to hold its arena again", 60, holds)
    mrep.wait_ready(3, 30)
    assert all(restarts(pod) == 0 for pod in mrep.pods())
    assert told(mrep).count("SeedSealed") == 1


@pytest.mark.timeout(60)
def test_a_scale_down_leaves_the_source(mrep: Mrep) -> None:
    node = source(mrep)
    name = mrep.pod_on(node)["metadata"]["name"]
    cost = "controller.kubernetes.io/pod-deletion-cost"

    def costs() -> None:
        annotations = mrep.pod_on(node)["metadata"].get("annotations", {})
        if annotations.get(cost) != "100":
            raise NotYet(f"the annotations of {name} are {annotations}")

    eventually(costs, f"the cost of {name} to be told", 15)
    mrep.scale(1)
    mrep.wait_ready(1, 30)
    assert [pod["metadata"]["name"] for pod in mrep.pods()] == [name]


@pytest.mark.timeout(180)
def test_the_last_copy_is_elsewhere_before_the_only_pod_is_evicted(mrep: Mrep) -> None:
    world, drained = mrep.world, source(mrep)
    mrep.wait_arenas({drained})  # else what a pod that went has left elsewhere is as good as a copy
    world.kubectl("cordon", drained)

    def moved() -> None:
        if source(mrep) == drained:
            raise NotYet(f"the status says {mrep.get()['status']['domains']}")

    eventually(moved, f"another node than {drained} to be the source", 30)
    copy = source(mrep)
    assert "CopyAhead" in told(mrep)
    assert [pod["spec"]["nodeName"] for pod in mrep.pods()] == [drained], "its pod serves still, and there is no other"
    assert {path.node for path in mrep.arenas()[copy].paths} == {drained}
    world.kubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", seconds=120)
    mrep.wait_ready(1, light.SECONDS)
    [pod] = mrep.pods()
    if (node := pod["spec"]["nodeName"]) != copy:
        assert {path.node for path in mrep.arenas()[node].paths} == {copy}
    assert told(mrep).count("SeedSealed") == 1
