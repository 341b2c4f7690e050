"""The life of one ModelReplica, from its first replica to its deletion in the middle of a clone.

One story: every chapter leaves the state that the next one starts from. Engines are light ones, since nothing here is
SGLang's own (test_sglang.py, test_ranks.py); all bytes go over the rack's network.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from flashboot_agent.wire.observed import Observed
from flashboot_agent.wire.observed_pod import ObservedPod
from kit import light
from kit.agents import SYSTEM, agents
from kit.errors import KitError
from kit.eventually import NotYet, eventually
from kit.faults import away, bit_flipper, slow_link
from kit.leaks import wait_nothing_left
from kit.world import NAMESPACE, Mrep, World, restarts

STORY = True
FLIPPED_BYTE = 5_242_881
SOURCE_SHARE = 2.02
"""Arenas that may leave the source when one link fails: the child behind it leaves its parent, and asks the source."""


MEBIBYTES = 64
SLOW_MBIT = 20
"""A clone takes half a minute over such a link."""


@dataclass
class Story:
    world: World
    mrep: Mrep
    sum: int = 0
    """What the seed's weights add up to."""
    digest: str = ""

    def sums(self) -> set[int]:
        return light.sums(self.world, [pod["metadata"]["name"] for pod in self.mrep.pods()])

    def occupied(self) -> set[str]:
        return {pod["spec"]["nodeName"] for pod in self.mrep.pods()}


@pytest.fixture(scope="module")
def story(world: World) -> Iterator[Story]:
    light.prepare(world)
    document = light.manifest("life", one_per_node=True, arguments=[f"--mebibytes={MEBIBYTES}"])
    yield Story(world, Mrep.create(world, document))
    world.kubectl("delete", "modelreplica", "life", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")


def test_the_first_replica_seeds(story: Story) -> None:
    story.mrep.wait_ready(1, light.SECONDS)
    (arena,) = story.mrep.arenas().values()
    assert (arena.way, arena.state) == ("seed", "sealed")
    assert arena.digest is not None
    story.digest = arena.digest
    (story.sum,) = story.sums()


@pytest.mark.timeout(300)
def test_three_more_clone_and_a_bit_flipped_on_the_way_costs_no_byte_twice(story: Story) -> None:
    """TLS refuses the record with the flipped bit, and with it the connection; the clone goes on at the very byte where
    the last good record ended. No byte that differs reaches Ready, and none reaches a clone twice."""
    seed_node = next(iter(story.mrep.arenas()))
    child = next(node for node in story.world.nodes() if node != seed_node)
    with bit_flipper(story.world, child, FLIPPED_BYTE) as fault:
        story.mrep.scale(4)
        story.mrep.wait_arenas(set(story.world.nodes()), 120)
        assert fault.happened
    arenas = story.mrep.arenas()
    assert {arena.digest for arena in arenas.values()} == {story.digest}
    clones = {node: arena for node, arena in arenas.items() if node != seed_node}
    assert {node: (arena.bytes_in, arena.refetched_chunks) for node, arena in clones.items()} == {
        node: (arena.bytes, 0) for node, arena in clones.items()
    }
    assert all("TLS" in (arena.transport_reason or "") for arena in clones.values())
    source = arenas[seed_node]
    assert source.bytes <= source.bytes_out <= SOURCE_SHARE * source.bytes
    story.mrep.wait_ready(4, light.SECONDS)
    assert story.sums() == {story.sum}


def test_two_go_and_their_arenas_with_them(story: Story) -> None:
    story.mrep.scale(2)
    story.mrep.wait_ready(2, 60)
    story.mrep.wait_arenas(story.occupied(), held=1)


@pytest.mark.timeout(300)
def test_pods_wait_for_an_agent_and_a_door_that_are_away(story: Story) -> None:
    """Both say what they wait for; both go on by themselves."""
    no_agent, no_door = sorted(set(story.world.nodes()) - story.occupied())
    with ExitStack() as stack:
        agent_away = stack.enter_context(ExitStack())
        agent_away.enter_context(away(story.world, "agent", no_agent))
        door_away = stack.enter_context(ExitStack())
        door_away.enter_context(away(story.world, "door", no_door))
        story.mrep.scale(4)
        eventually(lambda: _waits_for_the_agent(story, no_agent), f"the pod on {no_agent} to say it waits", 120)
        eventually(lambda: _waits_for_the_door(story, no_door), f"the pod on {no_door} to wait for its volume", 60)
    story.mrep.wait_ready(4, light.SECONDS)
    assert {arena.digest for arena in story.mrep.arenas().values()} == {story.digest}
    assert all(restarts(pod) == 0 for pod in story.mrep.pods())
    assert story.sums() == {story.sum}


def _waits_for_the_agent(story: Story, node: str) -> None:
    pod = story.mrep.pod_on(node)
    name = pod["metadata"]["name"]
    try:
        log = story.world.kubectl("logs", name, "-n", NAMESPACE, "-c", "engine", "--tail=200")
    except KitError as early:
        raise NotYet(str(early)) from early
    if "agent" not in log or "/flashboot/agent.sock" not in log:
        raise NotYet(f"the log of {name} ends: {log[-200:]!r}")


def _waits_for_the_door(story: Story, node: str) -> None:
    pod = story.mrep.pod_on(node)
    name = pod["metadata"]["name"]
    fields = f"regarding.name={name},reason=FailedMount"
    events = story.world.api.items("events", NAMESPACE, fields=fields)
    if not any("csi.flashboot.io" in event["note"] for event in events):
        raise NotYet(f"{name} is {pod['status'].get('phase')} without an event about its volume")


@pytest.mark.timeout(300)
def test_a_deleted_pod_comes_back(story: Story) -> None:
    victim = story.mrep.pods()[0]
    story.world.kubectl("delete", "pod", victim["metadata"]["name"], "-n", NAMESPACE, "--wait=true", seconds=60)
    story.mrep.wait_ready(4, light.SECONDS)
    assert victim["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in story.mrep.pods()}
    assert {arena.digest for arena in story.mrep.arenas().values()} == {story.digest}
    assert story.sums() == {story.sum}


@pytest.mark.timeout(180)
def test_a_killed_agent_finds_its_arenas_again(story: Story) -> None:
    """The holder kept the memory: nothing is fetched again, engines reconnect and never stop serving."""
    node = sorted(story.mrep.arenas())[0]
    before = story.world.observed()[node]
    killed = agents(story.world.api)[node]
    story.world.kubectl("delete", "pod", killed.pod, "-n", SYSTEM, "--grace-period=0", "--force", "--wait=true")

    def holds(seen: dict[str, Observed]) -> None:
        after = seen.get(node)
        if after is None or after.instance == before.instance:
            raise NotYet("the agent is not back")
        arena = story.mrep.arenas({node: after}).get(node)
        if arena is None or (arena.state, arena.digest) != ("sealed", story.digest):
            raise NotYet(f"its arena is {arena and arena.state}")
        if [pod.phase for pod in _ours(after)] != ["attached"]:
            raise NotYet(f"its pods are {[pod.phase for pod in _ours(after)]}")

    story.world.eventually_observed(f"the agent of {node} to hold its arena again", 90, holds)
    assert all(restarts(pod) == 0 for pod in story.mrep.pods())
    story.mrep.wait_ready(4, 60)
    assert story.sums() == {story.sum}


def _ours(seen: Observed) -> list[ObservedPod]:
    return [pod for pod in seen.pods if pod.namespace == NAMESPACE]


@pytest.mark.timeout(300)
def test_deletion_in_the_middle_of_a_clone_leaves_nothing(story: Story) -> None:
    story.mrep.scale(2)
    story.mrep.wait_ready(2, 60)
    story.mrep.wait_arenas(story.occupied(), held=1)
    free = sorted(set(story.world.nodes()) - story.occupied())
    with ExitStack() as stack:
        for node in free:
            stack.enter_context(slow_link(node, SLOW_MBIT))
        story.mrep.scale(4)
        story.world.eventually_observed("a clone in its middle", 60, lambda seen: _filling(story, seen, free))
        began = time.monotonic()
        story.mrep.delete()
        assert time.monotonic() - began < 30, "nothing may hold a ModelReplica that was deleted"
        wait_nothing_left(story.world)


def _filling(story: Story, seen: dict[str, Observed], nodes: list[str]) -> None:
    arenas = story.mrep.arenas(seen)
    states = {node: (arenas[node].state, arenas[node].watermark) for node in nodes if node in arenas}
    if not any(state == "filling" and watermark > 0 for state, watermark in states.values()):
        raise NotYet(str(states))
