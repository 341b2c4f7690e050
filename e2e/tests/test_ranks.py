"""A mixture of experts over two ranks, in one pod and over two pods, and plain SGLang, which all say the same.

Tensor parallelism only: on a CPU, SGLang itself cannot compute with experts that are spread over ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kit import checkpoints, names
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
    mrep: Mrep
    plain: Answer | None = None


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


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """The same container without FlashBoot: its flags, its volume and its label."""
    spec = copy.deepcopy(document["spec"]["template"]["spec"])
    probe = {"httpGet": {"path": "/ready", "port": ENGINE_PORT}, "periodSeconds": 1, "timeoutSeconds": 5}
    spec["containers"][0]["readinessProbe"] = probe
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": NAMESPACE}, "spec": spec}


@pytest.fixture(scope="module")
def story(world: World) -> Iterator[Story]:
    """Plain SGLang and the first replica start together: one alone would leave a core idle half of the time."""
    checkpoints.ensure(checkpoints.FULL)
    document = wide()
    world.apply(plain(document))
    yield Story(world, document, Mrep.create(world, document))
    world.kubectl("delete", "pod", "plain", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")
    world.kubectl("delete", "modelreplica", "ranks", "pairs", "-n", NAMESPACE, "--ignore-not-found", "--wait=true")


@pytest.mark.timeout(SECONDS + 60)
def test_plain_sglang_answers(story: Story) -> None:
    def ready() -> None:
        seen = story.world.api.get("pods", "plain", NAMESPACE)
        conditions = {c["type"]: c["status"] for c in seen["status"].get("conditions", ())}
        if conditions.get("Ready") != "True":
            raise NotYet(f"it is {seen['status'].get('phase')}, {conditions}")

    eventually(ready, "the plain engine to be ready", SECONDS, every=0.5)
    story.plain = ask(story.world.api, NAMESPACE, "plain")
    story.world.kubectl("delete", "pod", "plain", "-n", NAMESPACE, "--wait=true", seconds=60)


def agree(story: Story) -> None:
    """Every replica says what plain SGLang said. The first pod of a group speaks for it."""
    assert story.plain is not None
    for pod in story.mrep.pods():
        if pod["metadata"]["labels"].get("apps.kubernetes.io/pod-index", "0") != "0":
            continue
        said = ask(story.world.api, NAMESPACE, pod["metadata"]["name"])
        assert first_difference(story.plain, said) is None


@pytest.mark.timeout(SECONDS + 60)
def test_one_pod_seeds_the_arenas_of_both_ranks(story: Story) -> None:
    story.mrep.wait_ready(1, SECONDS)
    (ranks,) = story.mrep.ranks().values()
    assert sorted(ranks) == RANKS
    assert {(arena.way, arena.state) for arena in ranks.values()} == {("seed", "sealed")}
    assert len({arena.digest for arena in ranks.values()}) == 2, "each rank has bytes of its own"
    assert len({arena.identity for arena in ranks.values()}) == 2
    agree(story)
    assert not any(map(restarts, story.mrep.pods()))


@pytest.mark.timeout(SECONDS + 60)
def test_two_more_replicas_clone_both_ranks_and_answer_alike(story: Story) -> None:
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
    assert not any(map(restarts, story.mrep.pods()))


def over_two_pods() -> dict[str, Any]:
    """The same engine, each rank in a pod of its own, which meet by name."""
    made = wide()
    made["metadata"]["name"] = "pairs"
    made["spec"]["group"] = {"size": 2}
    template = made["spec"]["template"]
    template["metadata"]["labels"] = {"app": "pairs"}
    template["spec"] |= names.pod_dns()
    template["spec"]["topologySpreadConstraints"][0]["labelSelector"] = {"matchLabels": {"app": "pairs"}}
    return made


@pytest.fixture(scope="module")
def pairs(story: Story) -> Iterator[Story]:
    """The replicas of one pod are gone: cores are few."""
    story.mrep.delete()
    with names.served(story.world.api):
        yield story


def engines(story: Story) -> dict[str, tuple[str, int]]:
    """Pod → UID, and how often its engine was started again."""
    return {pod["metadata"]["name"]: (pod["metadata"]["uid"], restarts(pod)) for pod in story.mrep.pods()}


def sealed_at(story: Story) -> dict[tuple[str, str], object]:
    """Node and rank → when its arena was complete."""
    return {
        (node, rank): arena.sealed_at for node, ranks in story.mrep.ranks().items() for rank, arena in ranks.items()
    }


@pytest.mark.timeout(SECONDS + 60)
def test_a_group_of_two_pods_seeds_a_rank_each(pairs: Story) -> None:
    pairs.mrep = Mrep.create(pairs.world, over_two_pods())
    pairs.mrep.wait_ready(1, SECONDS)
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pairs.mrep.pods()}
    found = pairs.mrep.ranks()
    assert {name: sorted(found[node]) for name, node in nodes.items()} == {"pairs-0-0": ["tp0"], "pairs-0-1": ["tp1"]}
    assert {arena.way for ranks in found.values() for arena in ranks.values()} == {"seed"}
    agree(pairs)


@pytest.mark.timeout(SECONDS + 60)
def test_a_second_group_clones_and_answers_alike(pairs: Story) -> None:
    pairs.mrep.scale(2)
    pairs.mrep.wait_ready(2, SECONDS)
    status = pairs.mrep.get()["status"]
    assert (status["replicas"], status["readyReplicas"], status["lastClone"]["replicas"]) == (2, 2, 1)
    assert [domain["residentReplicas"] for domain in status["domains"]] == [2]
    selected = pairs.world.api.items("pods", NAMESPACE, labels=status["selector"])
    assert sorted(pod["metadata"]["name"] for pod in selected) == ["pairs-0-0", "pairs-1-0"]
    budget = pairs.world.api.get("poddisruptionbudgets", "pairs", NAMESPACE)
    assert budget["spec"]["minAvailable"] == 2
    agree(pairs)


@pytest.mark.timeout(SECONDS + 60)
def test_a_group_that_loses_an_engine_restarts_as_a_whole_and_loads_nothing(pairs: Story) -> None:
    before, sealed = engines(pairs), sealed_at(pairs)
    # All processes of the engine but the first, which then ends with an error; kubelet starts the container again.
    kill = "import os; me = {'1', str(os.getpid())}; "
    kill += "[os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit() and p not in me]"
    pairs.world.kubectl("exec", "-n", NAMESPACE, "pairs-1-1", "-c", "engine", "--", "python", "-c", kill)

    def anew() -> None:
        now = engines(pairs)
        same = [name for name in before if name.startswith("pairs-1-") and now.get(name, before[name]) == before[name]]
        if same:
            raise NotYet(f"{same} are as before")

    eventually(anew, "both engines of the group to be others", 90, every=0.5)
    pairs.mrep.wait_ready(2, SECONDS)
    now = engines(pairs)
    assert {name for name in now if now[name] == before[name]} == {"pairs-0-0", "pairs-0-1"}
    assert now["pairs-1-1"] == (before["pairs-1-1"][0], 1), "its pod is the same"
    assert sealed_at(pairs) == sealed, "no byte has moved"
    agree(pairs)


def test_scaling_down_takes_a_whole_group(pairs: Story) -> None:
    pairs.mrep.scale(1)

    def gone() -> None:
        left = sorted(engines(pairs))
        if left != ["pairs-0-0", "pairs-0-1"]:
            raise NotYet(f"pods are {left}")

    eventually(gone, "the group that feeds nobody to go", 60, every=0.5)
