"""A mixture of experts over two ranks in one pod: the seed, two clones, and plain SGLang, which all say the same.

Tensor parallelism only: on a CPU, SGLang itself cannot compute with experts that are spread over ranks.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kit import checkpoints
from kit.engines import ENGINE_PORT, Answer, ask, first_difference
from kit.eventually import NotYet, eventually
from kit.world import NAMESPACE, Mrep, World, manifest, restarts

STORY = True
RANKS = ["tp0", "tp1"]
SECONDS = 400
"""Each replica is two engine processes: six that start together share two cores."""


@dataclass
class Story:
    world: World
    document: dict[str, Any]
    plain: Answer | None = None
    mrep: Mrep | None = None


def wide() -> dict[str, Any]:
    """The example, over two ranks."""
    made = manifest("ranks", f"/models/{checkpoints.FULL}")
    made["spec"]["parallelism"] = {"tensor": 2}
    engine = made["spec"]["template"]["spec"]["containers"][0]
    engine["args"].append("--tp-size=2")
    engine["env"].append({"name": "SGLANG_CPU_OMP_THREADS_BIND", "value": "0|1"})
    # The image has NVIDIA's library, which SGLang would use between ranks on CPUs, too, and fail.
    engine["env"].append({"name": "SGLANG_NCCL_SO_PATH", "value": "none"})
    # With several ranks SGLang compiles a small function at its first request; there is no compiler in the image.
    engine["env"].append({"name": "TORCHDYNAMO_DISABLE", "value": "1"})
    return made


@pytest.fixture(scope="module")
def story(world: World) -> Iterator[Story]:
    checkpoints.ensure(checkpoints.FULL)
    yield Story(world, wide())
    world.kubectl("delete", "modelreplica", "ranks", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")


@pytest.mark.timeout(SECONDS + 60)
def test_plain_sglang_answers(story: Story) -> None:
    """The same container without FlashBoot: its flags, its volume and its label."""
    spec = copy.deepcopy(story.document["spec"]["template"]["spec"])
    spec["containers"][0]["readinessProbe"] = {"httpGet": {"path": "/ready", "port": ENGINE_PORT}, "timeoutSeconds": 5}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": NAMESPACE}, "spec": spec}
    story.world.kubectl.apply(json.dumps(pod))

    def ready() -> None:
        seen = story.world.kubectl.json("get", "pod", "plain", "-n", NAMESPACE)
        conditions = {c["type"]: c["status"] for c in seen["status"].get("conditions", ())}
        if conditions.get("Ready") != "True":
            raise NotYet(f"it is {seen['status'].get('phase')}, {conditions}")

    try:
        eventually(ready, "the plain engine to be ready", SECONDS, every=0.5)
        story.plain = ask(story.world.api, NAMESPACE, "plain")
    finally:
        story.world.kubectl("delete", "pod", "plain", "-n", NAMESPACE, "--wait=true", "--ignore-not-found", seconds=60)


def agree(story: Story) -> None:
    """Every replica says what plain SGLang said."""
    assert story.plain is not None
    assert story.mrep is not None
    for pod in story.mrep.pods():
        said = ask(story.world.api, NAMESPACE, pod["metadata"]["name"])
        assert first_difference(story.plain, said) is None
        assert restarts(pod) == 0


@pytest.mark.timeout(SECONDS + 60)
def test_one_pod_seeds_the_arenas_of_both_ranks(story: Story) -> None:
    story.mrep = Mrep.create(story.world, story.document)
    story.mrep.wait_ready(1, SECONDS)
    (ranks,) = story.mrep.ranks().values()
    assert sorted(ranks) == RANKS
    assert {(arena.way, arena.state) for arena in ranks.values()} == {("seed", "sealed")}
    assert len({arena.digest for arena in ranks.values()}) == 2, "each rank has bytes of its own"
    assert len({arena.identity for arena in ranks.values()}) == 2
    agree(story)


@pytest.mark.timeout(SECONDS + 60)
def test_two_more_replicas_clone_both_ranks_and_answer_alike(story: Story) -> None:
    assert story.mrep is not None
    (source,) = story.mrep.ranks()
    story.mrep.scale(3)
    story.mrep.wait_ready(3, SECONDS)
    found = story.mrep.ranks()
    assert len(found) == 3
    for node, ranks in found.items():
        assert sorted(ranks) == RANKS
        for rank, arena in ranks.items():
            seed = found[source][rank]
            assert (arena.state, arena.digest, arena.bytes) == ("sealed", seed.digest, seed.bytes)
            assert arena.way == ("seed" if node == source else "clone")
            assert node == source or (arena.bytes_in, arena.refetched_chunks) == (arena.bytes, 0)
    last = story.mrep.get()["status"]["lastClone"]
    assert (last["replicas"], last["bytes"]) == (2, sum(arena.bytes for arena in found[source].values()))
    agree(story)
