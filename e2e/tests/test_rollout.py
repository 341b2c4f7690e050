"""Another revision of a model, a template that never becomes Ready, and the way back, under the real controllers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from flashboot_agent.wire.observed_arena import ObservedArena
from kit import light
from kit.eventually import NotYet, eventually
from kit.world import NAMESPACE, Mrep, World

STORY = True
REPLICAS = 2
DEADLINE_SECONDS = 8
"""For a template that never becomes Ready; long enough for one that does."""


def wanted(revision: str, *arguments: str, deadline: int = 600) -> dict[str, Any]:
    document = light.manifest("roll", REPLICAS, revision=revision, arguments=arguments)
    document["spec"]["rollout"] = {"maxSurge": REPLICAS, "progressDeadlineSeconds": deadline}
    return document


@dataclass
class Story:
    world: World
    mrep: Mrep
    sum: int = 0
    pods: set[str] = field(default_factory=set)
    """Names of those that served at the end of the last chapter."""

    def served(self) -> None:
        names = {pod["metadata"]["name"] for pod in self.mrep.pods()}
        (self.sum,) = light.sums(self.world, sorted(names))
        self.pods = names

    def seeds(self) -> int:
        """How often the checkpoint was loaded so far."""
        events = self.world.api.items("events", NAMESPACE)
        mine = [event for event in events if event["regarding"].get("uid") == self.mrep.uid]
        return sum(1 for event in mine if event["reason"] == "SeedSealed")

    def arenas(self) -> list[ObservedArena]:
        """All of them, of whatever identity."""
        return [arena for node in self.world.observed().values() for arena in node.arenas if self._mine(arena)]

    def _mine(self, arena: ObservedArena) -> bool:
        return arena.model_replica_uid == self.mrep.uid


@pytest.fixture(scope="module")
def story(world: World) -> Iterator[Story]:
    light.prepare(world)
    mrep = Mrep.create(world, wanted("one"))
    yield Story(world, mrep)
    mrep.delete()


@pytest.mark.timeout(150)
def test_it_serves(story: Story) -> None:
    story.mrep.wait_ready(REPLICAS, light.SECONDS)
    story.served()
    assert story.seeds() == 1


@pytest.mark.timeout(150)
def test_another_revision_is_seeded_once_and_cloned_by_the_others(story: Story) -> None:
    before, earlier = story.sum, story.pods
    story.world.apply(wanted("two"))
    story.mrep.wait_ready(REPLICAS, light.SECONDS)
    story.served()
    assert story.sum != before, "these are the other revision's weights"
    assert not story.pods & earlier
    assert story.seeds() == 2, "one more, for two new replicas"
    eventually(lambda: _only_new(story), "the earlier arenas to be gone with their pods", 30)


def _only_new(story: Story) -> None:
    found = {arena.expected_identity for arena in story.arenas()}
    if len(found) != 1:
        raise NotYet(f"arenas of {len(found)} identities")


@pytest.mark.timeout(150)
def test_a_template_that_never_becomes_ready_stops(story: Story) -> None:
    story.world.apply(wanted("two", "--never-ready", deadline=DEADLINE_SECONDS))

    def stopped() -> str:
        stalled = story.mrep.condition("Stalled")
        if stalled["reason"] != "ProgressDeadlineExceeded" or "its engine is not Ready yet" not in stalled["message"]:
            raise NotYet(str(stalled))
        return str(stalled["message"])

    message = eventually(stopped, "the roll-out to be Stalled, with what holds it up", light.SECONDS)
    assert f"{REPLICAS} of the earlier one serve, and no more of them are taken away" in message
    assert "put the earlier ones back" in message
    serving = {pod["metadata"]["name"] for pod in story.mrep.pods()} & story.pods
    assert serving == story.pods
    assert light.sums(story.world, sorted(serving)) == {story.sum}
    assert story.mrep.condition("Available")["status"] == "True"
    described = story.world.kubectl("describe", "modelreplica", "roll", "-n", NAMESPACE)
    assert "RolloutStarted" in described
    assert "ProgressDeadlineExceeded" in described.split("Events:")[1]


@pytest.mark.timeout(150)
def test_the_way_back_loads_nothing_and_replaces_nobody(story: Story) -> None:
    story.world.apply(wanted("two"))
    story.mrep.wait_ready(REPLICAS, light.SECONDS)
    assert {pod["metadata"]["name"] for pod in story.mrep.pods()} == story.pods
    assert story.seeds() == 2
    with pytest.raises(NotYet):
        story.mrep.condition("Stalled")
