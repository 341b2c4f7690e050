"""The example as users get it: SGLang seeds, a second one clones, and both serve on while an agent is away.

One replica more than the least that shows it, since an engine takes half a minute of both cores to start; many replicas
are in test_life.py, several ranks and plain SGLang's own answers in test_ranks.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from flashboot_agent.wire.observed import Observed
from kit import checkpoints
from kit.agents import SYSTEM, agents
from kit.engines import Answer, ask, first_difference
from kit.eventually import NotYet
from kit.world import ENGINE_SECONDS, NAMESPACE, Mrep, World, manifest, restarts

STORY = True


@dataclass
class Story:
    world: World
    mrep: Mrep
    answer: Answer | None = None
    """What the seed said before anything else happened."""

    def agree(self) -> None:
        """Every replica says what the seed said, and none was restarted."""
        for pod in self.mrep.pods():
            self.agrees(pod)

    def agrees(self, pod: dict[str, Any]) -> None:
        """This one does."""
        assert self.answer is not None
        said = ask(self.world.api, NAMESPACE, pod["metadata"]["name"])
        assert first_difference(self.answer, said) is None
        assert restarts(pod) == 0


@pytest.fixture(scope="module")
def story(world: World) -> Iterator[Story]:
    checkpoints.ensure(checkpoints.FULL)
    yield Story(world, Mrep.create(world, manifest("sglang", f"/models/{checkpoints.FULL}")))
    world.kubectl("delete", "modelreplica", "sglang", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")


@pytest.mark.timeout(ENGINE_SECONDS + 60)
def test_the_first_replica_seeds(story: Story) -> None:
    story.mrep.wait_ready(1)
    (arena,) = story.mrep.arenas().values()
    assert (arena.way, arena.state) == ("seed", "sealed")
    (pod,) = story.mrep.pods()
    story.answer = ask(story.world.api, NAMESPACE, pod["metadata"]["name"])


@pytest.mark.timeout(ENGINE_SECONDS + 60)
def test_doctor_finds_everything_in_place_in_a_running_engines_pod(story: Story) -> None:
    (pod,) = story.mrep.pods()
    arguments = next(each for each in pod["spec"]["containers"] if each["name"] == "engine")["args"]
    doctor = ["python", "-m", "flashboot_operator.cli.main", "doctor", "-o", "json", "--", *arguments]
    where = ["exec", pod["metadata"]["name"], "-n", NAMESPACE, "-c", "engine"]
    story.mrep.scale(2)  # for the next chapter: this one keeps one of two cores busy, and so does an engine's start
    found = json.loads(story.world.kubectl(*where, "--", *doctor, seconds=ENGINE_SECONDS))
    states = {each["check"]: each["state"] for each in found["checks"]}
    assert found["ok"], found
    assert {"mount", "socket", "agent", "flags", "model", "identity"} <= states.keys()
    assert "skipped" not in states.values(), found
    story.agrees(pod)


@pytest.mark.timeout(ENGINE_SECONDS + 60)
def test_the_second_clones_and_answers_alike(story: Story) -> None:
    story.mrep.wait_ready(2)
    arenas = story.mrep.arenas().values()
    assert sorted(arena.way for arena in arenas) == ["clone", "seed"]
    assert len({arena.digest for arena in arenas}) == 1
    story.agree()


@pytest.mark.timeout(180)
def test_engines_serve_on_and_come_back_to_an_agent_that_was_killed(story: Story) -> None:
    node = min(story.mrep.arenas())
    before = story.world.observed()[node]
    killed = agents(story.world.api)[node]
    story.world.kubectl("delete", "pod", killed.pod, "-n", SYSTEM, "--grace-period=0", "--force", "--wait=true")
    story.agree()

    def back(seen: dict[str, Observed]) -> None:
        after = seen.get(node)
        if after is None or after.instance == before.instance:
            raise NotYet("the agent is not back")
        phases = [pod.phase for pod in after.pods if pod.namespace == NAMESPACE]
        if phases != ["attached"]:
            raise NotYet(f"its pods are {phases}")

    story.world.eventually_observed(f"the engine on {node} to come back to its agent", 90, back)
    story.agree()
